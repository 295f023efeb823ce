# SPDX-License-Identifier: Apache-2.0
"""Matrix products of strided matrices: mm, addmm, bmm, baddbmm, addbmm, mv, addmv, dot, vdot, linear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import blocked, common, engine, formats, packing, row
from .epilogue import Axis, Epilogue

if TYPE_CHECKING:
    from .call import ExternCall

# A matrix of less is read by columns where it lies: panels of B that it meets, and its own size in blocks of B.
_FEW_PANELS, _FEW_BLOCKS = 4, 4

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)

# With an epilogue, it does what is left to do with each element, instead of OUT_STORE and VSTORE.
_STORE = "#define FINISH(at, row, column, value) OUT_STORE(out, at, value)\n"
_STORE_VECTOR = "#define FINISH_VECTOR(at, row, column, value) STORE_ITEMS(out + (at), value)\n"
_OUT_AT = "#define OUT_AT(b, m, n) ((b) * OUT_S_B + (m) * OUT_S_M + (n) * OUT_S_N)\n"
_PRODUCT = "#define C_STORE(b, m, n, value) FINISH(OUT_AT(b, m, n), m, n, value)\n"
_PRODUCT_VECTOR = r"""
#define C_IS_VECTOR(b, n) (OUT_S_N == 1)
#define C_STORE_VECTOR(b, m, n, value) FINISH_VECTOR(OUT_AT(b, m, n), m, n, value)
"""
_SUM_VECTOR = r"""
#define C_IS_VECTOR(b, n) (OUT_S_N == 1 && (ADD_S_N == 1 || ADD_S_N == 0))
#define ADD_VECTOR(at) (ADD_S_N == 1 ? ACCS_AT(add + (at)) : (VECTOR)((ACC)ADD_LOAD(add, at)))
#define C_STORE_VECTOR(b, m, n, value)                                                               \
  const ACC alpha = (ACC)alpha_f + (ACC)alpha_i, beta = (ACC)beta_f + (ACC)beta_i;                   \
  VECTOR total = alpha * (value);                                                                    \
  if (beta != 0) total += beta * ADD_VECTOR((b) * ADD_S_B + (m) * ADD_S_M + (n) * ADD_S_N);          \
  FINISH_VECTOR(OUT_AT(b, m, n), m, n, total)
"""
_SUM = r"""
/* As ATen: a beta of zero ignores even NaN. */
#define C_STORE(b, m, n, value)                                                                      \
  const ACC alpha = (ACC)alpha_f + (ACC)alpha_i, beta = (ACC)beta_f + (ACC)beta_i;                   \
  ACC total = alpha * (value);                                                                       \
  if (beta != 0) total += beta * (ACC)ADD_LOAD(add, (b) * ADD_S_B + (m) * ADD_S_M + (n) * ADD_S_N);  \
  FINISH(OUT_AT(b, m, n), m, n, total)
"""


class _Strides:
    """Names of strides: parameters; or, with ``literal``, 0 or 1 where known, which lets the C compiler use vector
    loads where the text has none, at the price of a program for each layout."""

    def __init__(self, builder: PlanBuilder, literal: bool) -> None:
        self._builder = builder
        self._literal = literal
        self.macros = ""
        self.parameters = ""
        self.arguments: list[p.Argument] = []

    def add(self, name: str, stride: Size) -> None:
        if self._literal and stride in (0, 1):
            self.macros += f"#define {name} {int(stride)}L\n"
            return
        self.macros += f"#define {name} {name.lower()}\n"
        self.parameters += f", const long {name.lower()}"
        self.arguments.append(self._builder.int64(stride))


def emit(
    builder: PlanBuilder,
    a: TensorArg,
    b: TensorArg,
    out: TensorArg,
    add: TensorArg | None = None,
    beta: Any = 1,
    alpha: Any = 1,
    sum_batches: bool = False,
    epilogue: Epilogue | None = None,
) -> bool:
    """Appends ``out = alpha * a @ b + beta * add``.

    ``a`` is (batches, m, k), ``b`` (batches, k, n), ``out`` (batches, m, n), all of one dtype with any strides; ``add``
    broadcasts to ``out``. With ``sum_batches``, ``out`` has one batch: the sum over those of ``a`` and
    ``b``. ``epilogue`` says what becomes of the product if it is not just written. Returns False, having appended
    nothing, for a dtype, scalar or epilogue it does not cover."""
    dtypes = {a.dtype, b.dtype, out.dtype} | ({add.dtype} if add else set())
    if len(dtypes) > 1 or a.dtype == torch.bool or not common.supported(builder, a.dtype):
        return False
    if any(size == 0 for size in out.sizes):
        return True  # nothing to compute
    accumulate = engine.accumulator(a.dtype)
    if sum_batches and accumulate == "float" and builder.target.tuning.sums_in_doubles:
        accumulate = "double"  # one long sum where ATen adds up short ones
    as_it_lies = formats.in_vectors(a.dtype, accumulate) and not sum_batches
    half = formats.item_dtype(a.dtype, accumulate) if as_it_lies else None
    if epilogue is not None and not (as_it_lies and strided.is_dense(list(out.sizes), list(out.strides))):
        return False
    by_blocks = builder.target.tuning.vectors and out.sizes[1] != 1 and out.sizes[2] != 1
    packed = packing.find(builder, b) if builder.target.tuning.vectors and as_it_lies and out.sizes[2] != 1 else None
    strides = _Strides(builder, literal=not (as_it_lies and by_blocks))
    k = a.sizes[2]
    if sum_batches:
        for name, tensor in (("A", a), ("B", b)):
            strides.add(f"{name}_S_K", tensor.strides[0])
            strides.add(f"{name}_N_I", k)
        k = a.sizes[0] * k
        a, b = (_view(tensor, list(tensor.sizes), [_ZERO, *tensor.strides[1:]]) for tensor in (a, b))
    for name, stride in zip(("A_S_B", "A_S_O", "A_S_I"), a.strides, strict=True):
        strides.add(name, stride)
    for name, stride in zip(("B_S_B", "B_S_I", "B_S_O"), b.strides, strict=True):
        strides.add(name, stride)
    for name, stride in zip(("OUT_S_B", "OUT_S_M", "OUT_S_N"), out.strides, strict=True):
        strides.add(name, stride)
    parameters = ", OB_GLOBAL const A_T* a, OB_GLOBAL const B_T* mat, OB_GLOBAL OUT_T* out"
    arguments = [builder.pointer(a), builder.pointer(b if packed is None else packed), builder.pointer(out)]
    types = {"A": a.dtype, "B": b.dtype, "OUT": out.dtype}
    product, product_vector = _PRODUCT, _PRODUCT_VECTOR
    helpers: Mapping[str, str] = {}
    if add is not None:
        scalars = [common.scalar_arguments(builder, value, accumulate == "double") for value in (alpha, beta)]
        if scalars[0] is None or scalars[1] is None or len(add.sizes) > len(out.sizes):
            return False
        add_strides = common.broadcast_strides(add, out.sizes)
        for name, stride in zip(("ADD_S_B", "ADD_S_M", "ADD_S_N"), add_strides, strict=True):
            strides.add(name, stride)
        number = "double" if accumulate == "double" else "float"
        parameters += ", OB_GLOBAL const ADD_T* add" + "".join(
            f", const {number} {name}_f, const long {name}_i" for name in ("alpha", "beta")
        )
        arguments += [builder.pointer(add), *scalars[0], *scalars[1]]
        types["ADD"] = add.dtype
        product, product_vector = _SUM, _SUM_VECTOR
    shape = blocked.Blocking.for_product(builder.target, accumulate, half)
    store = _OUT_AT + product + (product_vector if as_it_lies else "")
    if epilogue is None:
        store += _STORE + (_STORE_VECTOR if as_it_lies else "")
    else:
        row, column = Axis(out.sizes[2], out.sizes[1]), Axis(_ONE, out.sizes[2])
        finish = epilogue.finish(builder, out.numel(), shape.lanes, row, column)
        if finish is None:
            return False
        store += finish.text
        helpers = finish.helpers
        parameters += finish.parameters
        arguments += finish.arguments
    operands = engine.strided_operand("A", "a", sum_batches, bits=half is not None)
    operands += engine.strided_operand("B", "mat", sum_batches)
    row_text, row_width = "", 1
    if as_it_lies and builder.target.tuning.vectors and not by_blocks:
        row_text, row_width = _row(shape, a, b, out, packed is not None)
    b_fill = blocked.FILL_MATRIX if as_it_lies else blocked.FILL_ELEMENTS
    if packed is not None:
        b_fill = blocked.FILL_PACKED
    engine.Product(
        batches=out.sizes[0],
        m=out.sizes[1],
        n=out.sizes[2],
        k=k,
        accumulate=accumulate,
        macros=strides.macros + operands + store,
        parameters=parameters + strides.parameters,
        arguments=arguments + strides.arguments,
        types=types,
        helpers=helpers,
        a_along_k=a.strides[2] == 1,
        b_along_k=b.strides[1] == 1 and b.strides[2] != 1,
        half=half,
        a_in_place=_a_in_place(a, half) if as_it_lies else "",
        a_columns=as_it_lies and _a_columns(builder, a, out.sizes[2], shape),
        b_fill=b_fill,
        row=row_text,
        row_width=row_width,
    ).emit(builder)
    return True


_ROW = """
#define X(b) ((OB_GLOBAL const ITEM*)a + (b) * A_S_B)
#define X_STEP A_S_I
#define MATRIX(b) ((OB_GLOBAL const ITEM*)mat + (b) * B_S_B)
#define K_STEP B_S_I
#define N_STEP B_S_O
#define ROW_STORE(b, i, value) C_STORE(b, 0, i, value)
#define ROW_VECTORS(b) C_IS_VECTOR(b, 0)
#define ROW_STORE_VECTOR(b, i, value) C_STORE_VECTOR(b, 0, i, value)
"""
_COLUMN = """
#define X(b) ((OB_GLOBAL const ITEM*)mat + (b) * B_S_B)
#define X_STEP B_S_I
#define MATRIX(b) ((OB_GLOBAL const ITEM*)a + (b) * A_S_B)
#define K_STEP A_S_I
#define N_STEP A_S_O
#define ROW_STORE(b, i, value) C_STORE(b, i, 0, value)
#define ROW_VECTORS(b) 0
#define ROW_STORE_VECTOR(b, i, value)
"""
_ROW_PACKED = """
#define X(b) ((OB_GLOBAL const ITEM*)a + (b) * A_S_B)
#define X_STEP A_S_I
#define MATRIX(b) ((OB_GLOBAL const ITEM*)mat)
#define ROW_STORE(b, i, value) C_STORE(b, 0, i, value)
#define ROW_VECTORS(b) C_IS_VECTOR(b, 0)
#define ROW_STORE_VECTOR(b, i, value) C_STORE_VECTOR(b, 0, i, value)
"""


def _row(shape: blocked.Blocking, a: TensorArg, b: TensorArg, out: TensorArg, packed: bool) -> tuple[str, int]:
    """The program for one row or column of C, and its width; no program if the operands do not lie as it needs."""
    if packed:
        return _ROW_PACKED + row.panels(shape), row.wide(shape, packed=True)
    is_row = out.sizes[1] == 1
    macros = _ROW if is_row else _COLUMN
    x_step = a.strides[2] if is_row else b.strides[1]
    k_step, n_step = (b.strides[1], b.strides[2]) if is_row else (a.strides[2], a.strides[1])
    if k_step == 1 and x_step == 1:
        return macros + row.columns(shape), 1
    if n_step == 1:
        return macros + row.rows(shape), row.wide(shape, packed=False)
    return "", 1


_A_IN_PLACE = """
#define A_START(b, m) ((OB_GLOBAL const ITEM*)a + (b) * A_S_B + (m) * A_S_O)
#define A_ROW A_S_O
#define A_STEP A_S_I
"""


def _a_in_place(a: TensorArg, half: torch.dtype | None) -> str:
    """Macros that read A as it lies; empty if it cannot be: neighbours in rows of halves must be neighbours in memory,
    or such in columns, which are arranged."""
    return _A_IN_PLACE if half is None or _ONE in (a.strides[1], a.strides[2]) else ""


def _a_columns(builder: PlanBuilder, a: TensorArg, n: Size, shape: blocked.Blocking) -> bool:
    """Whether A's columns, whose elements are neighbours, are arranged as rows. Halves have to be. For numbers the copy
    pays if many panels of B meet A: a vector's worth of k is then read from as many pages, of caches beyond the first
    if A is larger than that."""
    if a.strides[2] == 1 or a.strides[1] != 1:
        return False
    if shape.half is not None:
        return True
    blocks = _FEW_BLOCKS * shape.k_block * shape.columns
    return common.holds(builder, sympy.Ge(n, _FEW_PANELS * shape.columns)) and common.holds(
        builder, sympy.Ge(a.numel(), blocks)
    )


def _view(tensor: TensorArg, sizes: list[Size], strides: list[Size]) -> TensorArg:
    return TensorArg(tensor.buffer, tensor.dtype, tuple(sizes), tuple(strides), tensor.offset)


def _unsqueeze(tensor: TensorArg, *dims: int) -> TensorArg:
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    for dim in dims:
        sizes.insert(dim, _ONE)
        strides.insert(dim, _ZERO)
    return _view(tensor, sizes, strides)


def lower_mm(builder: PlanBuilder, call: ExternCall) -> bool:
    """``mm`` and ``bmm``."""
    values = call.bind()
    a, b, out = values["self"], values["mat2"], call.outputs()[0]
    if len(a.sizes) == 2:
        a, b, out = (_unsqueeze(tensor, 0) for tensor in (a, b, out))
    return emit(builder, a, b, out, epilogue=call.epilogue)


def lower_addmm(builder: PlanBuilder, call: ExternCall) -> bool:
    """``addmm`` and ``baddbmm``."""
    values = call.bind()
    a, b = (values["mat1"], values["mat2"]) if "mat1" in values else (values["batch1"], values["batch2"])
    out = call.outputs()[0]
    if len(a.sizes) == 2:
        a, b, out = (_unsqueeze(tensor, 0) for tensor in (a, b, out))
    return emit(builder, a, b, out, values["self"], values["beta"], values["alpha"], epilogue=call.epilogue)


def lower_addbmm(builder: PlanBuilder, call: ExternCall) -> bool:
    """``addbmm``, as one product over batches and k."""
    values = call.bind()
    a, b, out = values["batch1"], values["batch2"], _unsqueeze(call.outputs()[0], 0)
    return emit(builder, a, b, out, values["self"], values["beta"], values["alpha"], sum_batches=True)


def lower_mv(builder: PlanBuilder, call: ExternCall) -> bool:
    """``mv`` and ``addmv``."""
    values = call.bind()
    matrix = values["self"] if "mat" not in values else values["mat"]
    add = values["self"] if "mat" in values else None
    out = _unsqueeze(call.outputs()[0], 0, 2)
    if add is not None and len(add.sizes) == 1:
        add = _unsqueeze(add, 1)
    return emit(
        builder,
        _unsqueeze(matrix, 0),
        _unsqueeze(values["vec"], 0, 2),
        out,
        add,
        values.get("beta"),
        values.get("alpha"),
    )


def lower_dot(builder: PlanBuilder, call: ExternCall) -> bool:
    """``dot`` and ``vdot`` of real vectors."""
    values = call.bind()
    a, b = values["self"], values["tensor"] if "tensor" in values else values["other"]
    out = _unsqueeze(call.outputs()[0], 0, 0, 0)
    return emit(builder, _unsqueeze(a, 0, 0), _unsqueeze(b, 0, 2), out)


def lower_linear(builder: PlanBuilder, call: ExternCall) -> bool:
    """``linear`` whose leading dimensions step evenly through input and output."""
    values = call.bind()
    source, weight, bias, out = values["input"], values["weight"], values["bias"], call.outputs()[0]
    if len(weight.sizes) != 2:
        return False
    rows = common.Rows(out.sizes[:-1], {"in": source.strides[:-1], "out": out.strides[:-1]})
    if len(rows.dims) > 1:
        return False
    in_stride, out_stride = rows.dims[0][1] if rows.dims else (_ZERO, _ZERO)
    a = _view(source, [_ONE, rows.count, source.sizes[-1]], [_ZERO, in_stride, source.strides[-1]])
    b = _view(weight, [_ONE, weight.sizes[1], weight.sizes[0]], [_ZERO, weight.strides[1], weight.strides[0]])
    c = _view(out, [_ONE, rows.count, out.sizes[-1]], [_ZERO, out_stride, out.strides[-1]])
    return emit(builder, a, b, c, bias)
