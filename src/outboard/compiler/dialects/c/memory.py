# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of elements, conversions of those that exist in memory only."""

from __future__ import annotations

import dataclasses

import torch

from .prelude import HAS_BUILTIN, Maker, Prelude, choose, helper
from .types import memory_type, type_name


@dataclasses.dataclass(frozen=True)
class _Eighth:
    """A float of 8 bits: its exponent's ``bias``, the bits of its ``mantissa``, the least NaN, and what floats become,
    infinities among them, whose bits are those of ``beyond`` or greater: the largest number, or infinity."""

    name: str
    mantissa: int
    bias: int
    beyond: int
    overflow: int
    nan: int

    @property
    def has_infinity(self) -> bool:
        """Whether there is infinity: all bits of an exponent, and none of a mantissa."""
        return self.overflow % (1 << self.mantissa) == 0

    @property
    def shift(self) -> int:
        """By how many bits a float's mantissa is longer."""
        return 23 - self.mantissa

    @property
    def rebias(self) -> int:
        """What is added to the exponent in a float's bits."""
        return (127 - self.bias) << 23


_EIGHTHS = {
    torch.float8_e4m3fn: _Eighth("e4m3fn", 3, 7, beyond=0x43E00000, overflow=0x7E, nan=0x7F),
    torch.float8_e5m2: _Eighth("e5m2", 2, 15, beyond=0x47800000, overflow=0x7C, nan=0x7D),
}
#: What exists in memory only.
_NARROW = (torch.float16, torch.bfloat16, *_EIGHTHS)


@helper("bf16")
def _helper_bf16(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """float to bfloat16 bits, to nearest even; NaN stays NaN, with its sign."""
    f, u, us = type_name(torch.float32, width), type_name(torch.uint32, width), type_name(torch.uint16, width)
    convert = f"convert_{us}" if width > 1 else f"({us})"
    rounded = f"(bits + ({u})(0x7fff) + ((bits >> ({u})(16)) & ({u})(1))) >> ({u})(16)"
    chosen = choose(torch.float32, width, "a != a", f"((bits >> ({u})(16)) | ({u})(0x40))", rounded)
    return f"{us} {full}({f} a) {{ {u} bits = as_{u}(a); return {convert}({chosen}); }}"


# PoCL converts halves by shifts and masks although its compiler knows the instructions for it, where there are any.
_NATIVE_HALF = "#if __has_builtin(__builtin_convertvector) && (defined(__F16C__) || defined(__aarch64__))\n"


# PoCL's vload_halfN and vstore_halfN take their pointers to be aligned to the whole vector, so that memory is
# accessed as ushort, and a register in between is converted.
@helper("half_values")
def _helper_half_values(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    if width == 1:
        return f"float {full}(ushort bits) {{ return OB_LOAD_HALF((const ob_half*)&bits, 0); }}"
    return f"{HAS_BUILTIN}float{width} {full}(ushort{width} bits) {{\n" + _with_native_halves(
        full, width, f"return __builtin_convertvector(__builtin_astype(bits, {full}_t), float{width});",
        f"return vload_half{width}(0, (const half*)&bits);",
    )  # fmt: skip


def _with_native_halves(full: str, width: int, native: str, portable: str) -> str:
    """The end of a function: what it does with vectors of halves, of type ``<full>_t``, and where there are none."""
    return (
        f"{_NATIVE_HALF}  typedef half {full}_t __attribute__((ext_vector_type({width})));\n"
        f"  {native}\n#else\n  {portable}\n#endif\n}}"
    )


# PoCL cuts vstoreN into pieces of 16 bytes; an assignment through a type of the element's alignment stays whole.
@helper("store")
def _helper_store(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    vector, loose = type_name(dtype, width), f"{full}_t"
    return (
        f"typedef {vector} {loose} OB_ALIGNED({dtype.itemsize});\n"
        f"void {full}({vector} value, OB_GLOBAL {type_name(dtype)}* p) {{ *(OB_GLOBAL {loose}*)p = value; }}"
    )


# The atomic operation that every runtime with threads ends a work-group with orders these stores before what follows.
@helper("store_far")
def _helper_store_far(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    vector, near = type_name(dtype, width), prelude.use("store", dtype, width)
    return (
        f"{HAS_BUILTIN}void {full}({vector} value, OB_GLOBAL {type_name(dtype)}* p, int far) {{\n"
        "#if __has_builtin(__builtin_nontemporal_store)\n"
        f"  if (far) {{ __builtin_nontemporal_store(value, (OB_GLOBAL {vector}*)p); return; }}\n"
        f"#endif\n  {near}(value, p);\n}}"
    )


@helper("fetch")
def _helper_fetch(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Asks for the cache line at an address."""
    return (
        f"{HAS_BUILTIN}void {full}(ulong address) {{\n#if __has_builtin(__builtin_prefetch)\n"
        "  __builtin_prefetch((const void*)address);\n#endif\n}"
    )


@helper("half_bits")
def _helper_half_bits(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    if width == 1:
        return f"ushort {full}(float value) {{ ushort bits; OB_STORE_HALF((ob_half*)&bits, 0, value); return bits; }}"
    return f"{HAS_BUILTIN}ushort{width} {full}(float{width} value) {{\n" + _with_native_halves(
        full, width, f"return __builtin_astype(__builtin_convertvector(value, {full}_t), ushort{width});",
        f"ushort{width} bits;\n  vstore_half{width}_rte(value, 0, (half*)&bits);\n  return bits;",
    )  # fmt: skip


def _eighth_values(eighth: _Eighth) -> Maker:
    """Makes the function from bits to floats. Numbers below the normal ones are multiples of the least."""

    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        f, u, uc = type_name(torch.float32, width), type_name(torch.uint32, width), type_name(torch.uint8, width)
        to_u, to_f = (f"convert_{u}", f"convert_{f}") if width > 1 else (f"({u})", f"({f})")
        normal = f"(size << ({u})({eighth.shift})) + ({u})({eighth.rebias:#x}u)"
        small = f"as_{u}({to_f}(size) * ({f})({2.0 ** (1 - eighth.bias - eighth.mantissa)!r}f))"
        number = choose(torch.float32, width, f"size < ({u})({1 << eighth.mantissa})", small, normal)
        if eighth.has_infinity:
            number = choose(torch.float32, width, f"size == ({u})({eighth.overflow})", f"({u})(0x7f800000u)", number)
        chosen = choose(torch.float32, width, f"size >= ({u})({eighth.nan})", f"({u})(0x7fc00000u)", number)
        return (
            f"{f} {full}({uc} bits) {{ {u} all = {to_u}(bits), size = all & ({u})(0x7f); "
            f"return as_{f}(({chosen}) | ((all & ({u})(0x80)) << ({u})(24))); }}"
        )

    return make


def _eighth_bits(eighth: _Eighth) -> Maker:
    """Makes the function from floats to bits, to nearest even. A sum rounds numbers below the normal ones."""

    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        f, u, uc = type_name(torch.float32, width), type_name(torch.uint32, width), type_name(torch.uint8, width)
        to_uc = f"convert_{uc}" if width > 1 else f"({uc})"
        half = f"({u})({(1 << (eighth.shift - 1)) - 1:#x}) + ((size >> ({u})({eighth.shift})) & ({u})(1))"
        normal = f"(size - ({u})({eighth.rebias:#x}u) + {half}) >> ({u})({eighth.shift})"
        unit = 2.0 ** (24 - eighth.bias - eighth.mantissa)
        small = f"as_{u}(as_{f}(size) + ({f})({unit!r}f)) - as_{u}(({f})({unit!r}f))"
        least = (128 - eighth.bias) << 23
        number = choose(torch.float32, width, f"size < ({u})({least:#x})", small, normal)
        number = choose(torch.float32, width, f"size >= ({u})({eighth.beyond:#x})", f"({u})({eighth.overflow})", number)
        chosen = choose(torch.float32, width, f"size > ({u})(0x7f800000u)", f"({u})(0x7f)", number)
        return (
            f"{uc} {full}({f} a) {{ {u} all = as_{u}(a), size = all & ({u})(0x7fffffffu); "
            f"return {to_uc}(({chosen}) | ((all >> ({u})(24)) & ({u})(0x80))); }}"
        )

    return make


for _each in _EIGHTHS.values():
    helper(f"{_each.name}_values")(_eighth_values(_each))
    helper(f"{_each.name}_bits")(_eighth_bits(_each))


def load(prelude: Prelude, buffer: str, dtype: torch.dtype, index: str, width: int) -> str:
    """``width`` consecutive elements from ``index`` on, in the compute dtype."""
    if width == 1:
        return load_pointer(prelude, f"({buffer} + ({index}))", dtype)
    pointer = f"{buffer} + ({index})"
    if dtype == torch.float16:
        pointer = f"(OB_GLOBAL const ushort*)({pointer})"
    vector = f"vload{width}(0, {pointer})"
    if dtype in _NARROW:
        return narrow_values(prelude, vector, dtype, width)
    if dtype == torch.bool:
        return f"(convert_int{width}({vector}) != 0)"
    return vector


def narrow_values(prelude: Prelude, bits: str, dtype: torch.dtype, width: int) -> str:
    """The floats whose bits as a narrower dtype are given."""
    if dtype in _EIGHTHS:
        return f"{prelude.use(f'{_EIGHTHS[dtype].name}_values', torch.float32, width)}({bits})"
    if dtype == torch.bfloat16:
        return f"as_float{width}(convert_uint{width}({bits}) << 16)" if width > 1 else f"as_float((uint)({bits}) << 16)"
    return f"{prelude.use('half_values', torch.float32, width)}({bits})"


def narrow_bits(prelude: Prelude, value: str, dtype: torch.dtype, width: int) -> str:
    """The bits of floats rounded to a narrower dtype, to the nearest, ties to even."""
    name = f"{_EIGHTHS[dtype].name}_bits" if dtype in _EIGHTHS else "bf16" if dtype == torch.bfloat16 else "half_bits"
    return f"{prelude.use(name, torch.float32, width)}({value})"


def narrowed(prelude: Prelude, value: str, dtype: torch.dtype, width: int) -> str:
    """Floats rounded to a narrower dtype."""
    return narrow_values(prelude, narrow_bits(prelude, value, dtype, width), dtype, width)


def _stored(dtype: torch.dtype) -> torch.dtype:
    """An integer or float of a computable type that has the bits of an element of ``dtype``."""
    narrow = {1: torch.uint8, 2: torch.uint16}
    return narrow[dtype.itemsize] if dtype == torch.bool or dtype in _NARROW else dtype


@helper("pack")
def _helper_pack(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Elements that one access takes, whose address is a multiple of their size."""
    return f"typedef struct OB_ALIGNED({width * dtype.itemsize}) {{ {memory_type(dtype)} v[{width}]; }} {full};"


def pack(prelude: Prelude, dtype: torch.dtype, count: int) -> str:
    """The type of ``count`` neighbouring elements of ``dtype`` as one access; ``v`` are the elements."""
    return prelude.use("pack", _stored(dtype), count)


def packed(prelude: Prelude, element: str, dtype: torch.dtype) -> str:
    """An element of a pack, in the compute dtype."""
    if dtype in _NARROW:
        return narrow_values(prelude, element, dtype, 1)
    return f"({element} != 0)" if dtype == torch.bool else element


def to_pack(prelude: Prelude, value: str, dtype: torch.dtype) -> str:
    """A value of the compute dtype as an element of a pack."""
    if dtype in _NARROW:
        return narrow_bits(prelude, value, dtype, 1)
    return f"(uchar)({value})" if dtype == torch.bool else value


def load_pointer(prelude: Prelude, pointer: str, dtype: torch.dtype) -> str:
    """The element at a pointer, in the compute dtype."""
    if dtype == torch.float16:
        return f"OB_LOAD_HALF({pointer}, 0)"
    if dtype == torch.bfloat16:
        return f"as_float((uint)(*{pointer}) << 16)"
    if dtype == torch.bool:
        return f"(*{pointer} != 0)"
    if dtype in _EIGHTHS:
        return narrow_values(prelude, f"*{pointer}", dtype, 1)
    return f"*{pointer}"


def store(
    prelude: Prelude, buffer: str, dtype: torch.dtype, index: str, value: str, width: int, far: str | None = None
) -> str:
    """A statement that writes ``width`` consecutive elements; ``value`` is of the element's compute dtype. A vector
    whose address is a multiple of its size goes past the caches where ``far``, a condition, holds."""
    pointer = f"{buffer} + ({index})"
    if dtype == torch.float16 and width == 1:
        return f"OB_STORE_HALF({pointer}, 0, {value});"
    if dtype == torch.float16:
        value = narrow_bits(prelude, value, dtype, width)
        pointer = f"(OB_GLOBAL ushort*)({pointer})"
    elif dtype in _NARROW:
        value = narrow_bits(prelude, value, dtype, width)
    elif dtype == torch.bool:
        value = f"convert_uchar{width}(({value}) & 1)" if width > 1 else f"(uchar)({value})"
    if width == 1:
        return f"{buffer}[{index}] = {value};"
    stored = _stored(dtype)
    if far is not None:
        return f"{prelude.use('store_far', stored, width)}({value}, {pointer}, {far});"
    return f"{prelude.use('store', stored, width)}({value}, {pointer});"
