# SPDX-License-Identifier: Apache-2.0
"""One program on the CPU and on the device, in step: each line is run on both and compared before the next."""

from __future__ import annotations

import copy
import functools
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tools import on_cpu
from tools.fuzz import allowed, compare
from tools.fuzz.program import Namespace, is_leaf, namespace, references, tensors, widened
from tools.fuzz.state import evaluate, under

#: Lines that may write into what they are given.
_WRITES = re.compile(r"[a-z0-9]_\(|\bout=|\bassign\(")

#: Lines whose terms may cancel: they subtract a mean from what it is the mean of, or add products, or signed losses.
CANCELS = re.compile(
    r"_norm\(|\bF\.(scaled_dot_product_attention|grid_sample|(adaptive_)?avg_pool\dd)\(|\btrapezoid\("
    r"|\b(var|std|var_mean|std_mean|cov|corrcoef|sum|mean|nansum|nanmean)\("
    r"|torch\.(v?dot|inner|mv|mm|bmm|matmul|addmm|addmv|addbmm|baddbmm|einsum|tensordot|kron|linalg\.vecdot|linalg\.cross)\("
    r"|F\.(linear|bilinear|conv\dd|conv_transpose\dd|\w*loss|kl_div|\w*cross_entropy\w*)\("
)


@dataclass(frozen=True)
class Finding:
    """The first wrong line of a program: its kind (``value``, ``strides``, ``form``,
    ``alias``, ``exception``, ``refusal``, ``host``) and what is wrong."""

    kind: str
    line: str
    text: str


class _Memory:
    """Which values of one side share memory."""

    def __init__(self) -> None:
        self._names: defaultdict[int, dict[str, bool]] = defaultdict(dict)  # by storage: whether it has elements there
        self._storages: dict[str, set[int]] = {}

    def put(self, name: str, value: Any) -> None:
        """Notes where a value lies, which may have been another one's name before."""
        for storage in self._storages.pop(name, ()):
            del self._names[storage][name]
        for tensor in tensors(value):
            names = self._names[_storage(tensor)]
            names[name] = names.get(name, False) or tensor.numel() > 0
        self._storages[name] = {_storage(tensor) for tensor in tensors(value)}

    def sharing(self, tensor: Tensor) -> list[str]:
        """The names of values with elements in the storage of ``tensor``, in the order of their lines."""
        return [name for name, has_elements in self._names[_storage(tensor)].items() if has_elements]

    def reached(self, names: list[str]) -> list[str]:
        """The names of values in any storage of one of ``names``, themselves included, in the order of their lines."""
        found = {key for name in names for storage in self._storages.get(name, ()) for key in self._names[storage]}
        return sorted(found, key=lambda key: int(key[1:]))


class Sides:
    """The values of a program on the CPU and on ``device``. ``announce`` is told each line before it is run."""

    def __init__(self, device: str, announce: Callable[[str], None] = lambda line: None) -> None:
        self.device = device
        self.lines: list[str] = []
        self.cpu: Namespace = namespace("cpu")
        self.ours: Namespace = namespace(device)
        self.operands: Namespace = {}
        self._memory = {"cpu": _Memory(), "ours": _Memory()}
        self._announce = announce
        module = torch.get_device_module(device) if device != "cpu" else None
        self._module = module if module and module.get_device_properties(0).has_fp64 else None

    def step(self, line: str) -> tuple[Any, Finding | None, Exception | None]:
        """Runs one line on both sides. Returns the CPU's value, what is wrong, and the CPU's exception."""
        name = f"v{len(self.lines)}"
        self.lines.append(line)
        self._announce(line)
        known = references(line)
        before = copy.deepcopy({key: self.cpu[key] for key in known}) if _WRITES.search(line) else None
        self.operands = before or {key: self.cpu[key] for key in known}
        theirs, their_error = _run(line, self.cpu)
        fallbacks = self._module.fallbacks() if self._module else {}
        ours, our_error = _run(line, self.ours)
        late = _late_exception()
        text = compare.exceptions_differ(line, our_error or late, their_error)
        our_error = our_error or late
        is_tracing = bool(text) and _is_so_in_graphs(line, self.cpu, our_error)
        self._set(name, ours, theirs)
        if text and not is_tracing:
            return theirs, Finding("exception", line, text), their_error
        if their_error is not None or our_error is not None:
            self._set(name, None, None)
            text = self._changed(known, {} if late or before is None else before)
            if text and not is_tracing:
                return theirs, Finding("refusal", line, text), their_error
            self._take_over(known)
            host = self._on_host(line, list(self.operands.values()), fallbacks)  # what is refused is no fallback
            return theirs, host, their_error or our_error
        host = self._on_host(line, [*self.operands.values(), theirs], fallbacks)
        return theirs, self._compare(name, line, known, before) or host, None

    def _on_host(self, line: str, values: list[Any], before: dict[str, int]) -> Finding | None:
        """What the line ran on the CPU for no known reason. A device without float64 has one for much, and the CPU
        decides what is written last to elements that share memory."""
        if not self._module or ((_WRITES.search(line) or "inplace" in line) and any(map(_repeats, tensors(values)))):
            return None
        dtypes = {tensor.dtype for tensor in tensors(values)} | ({torch.complex64} if "complex" in line else set())
        with under(self.cpu):
            found = on_cpu.unexplained(on_cpu.new_fallbacks(self.device, before), dtypes)
        return Finding("host", line, f"{', '.join(found)} on the CPU") if found else None

    def _set(self, name: str, ours: Any, theirs: Any) -> None:
        self.ours[name], self.cpu[name] = ours, theirs
        self._memory["ours"].put(name, ours)
        self._memory["cpu"].put(name, theirs)

    def _changed(self, known: list[str], before: Namespace) -> str:
        """What a call that was refused has done to its operands on the device alone, or ''. ``before`` are those whose
        numbers count: what is written before an index is found to be wrong is not said."""
        for key in known:
            for part, (ours, theirs) in enumerate(zip(tensors(self.ours[key]), tensors(self.cpu[key]), strict=True)):
                unchanged = key in before and ours.shape == tensors(before[key])[part].shape
                if ours.shape != theirs.shape and unchanged:
                    continue  # the CPU has resized it before it refused
                if ours.shape != theirs.shape:
                    return f"{key} is of shape {tuple(ours.shape)} instead of {tuple(theirs.shape)} after it"
                if key not in before or not _same_bits(theirs, tensors(before[key])[part]):
                    continue
                if not _same_bits(ours.detach().cpu(), theirs):
                    return f"{key} has other numbers after it"
        return ""

    def _compare(self, name: str, line: str, known: list[str], before: Namespace | None) -> Finding | None:
        text = compare.difference(self.ours[name], self.cpu[name], self.device)
        if text:
            return Finding("form", line, text)
        text = self._alias_difference(name)
        if text:
            return Finding("alias", line, text)
        if is_leaf(line):
            return None
        text = compare.stride_difference(line, self.ours[name], self.cpu[name])
        layout = Finding("strides", line, text) if text else None
        self._take_over_strides(name)
        filled = bool(self.cpu["STATE"].get("deterministic"))
        if allowed.values(line, filled=filled) or (before is not None and allowed.overlap(line, list(before.values()))):
            self._take_over([name, *known])
            return layout
        return self._compare_values(name, line, known, before) or layout

    def _compare_values(self, name: str, line: str, known: list[str], before: Namespace | None) -> Finding | None:
        values = before if before is not None else {key: self.cpu[key] for key in known}
        floats = [x for x in tensors(list(values.values())) if is_inexact(x)]
        text = compare.scalar_difference(self.ours[name], self.cpu[name], floats)
        if text:
            return Finding("value", line, text)
        exact: Namespace | None = None
        finding: Finding | None = None
        for key in (name, *self._reached(known if before is not None else [])):
            for part, (ours, theirs) in enumerate(zip(tensors(self.ours[key]), tensors(self.cpu[key]), strict=True)):
                host = ours.detach().cpu()
                if _same_bits(host, theirs):
                    continue
                operands = tensors(list(values.values()))
                right = allowed.expected(line, part, host, theirs, operands) if key == name else theirs
                terms = max((x.numel() for x in operands), default=1)
                if not compare.is_close(host, right):
                    exact = exact if exact is not None else exact_values(name, line, values)
                    truth = tensors(exact[key])[part] if key in exact and part < len(tensors(exact[key])) else None
                    shaken = self._shaken(key, part, name, line, values)
                    if not compare.within_rounding(host, right, truth, shaken, terms):
                        finding = finding or Finding("value", line, _describe(key, host, theirs, truth))
                _replace(ours, theirs)
            if key != name and is_leaf(self.lines[int(key[1:])]) and not _same_memory(self.ours[key], self.cpu[key]):
                finding = finding or Finding("value", line, f"writes beside {key}")
        return finding

    def _shaken(self, key: str, part: int, name: str, line: str, values: Namespace) -> Tensor | None:
        """The CPU's result for operands that differ in their last bit, for lines whose terms may cancel: then rounding
        is all that is left, and they may divide it by next to nothing."""
        if not CANCELS.search(line):
            return None
        theirs = tensors(self.cpu[key])[part]
        furthest: Tensor | None = None
        for salt in range(_SHAKES):
            shaken = _evaluate(name, line, values, functools.partial(shake, salt=salt), self.cpu["STATE"])
            found = tensors(shaken.get(key))
            if part >= len(found) or found[part].shape != theirs.shape:
                continue
            if furthest is None or _distance(found[part], theirs) > _distance(furthest, theirs):
                furthest = found[part]
        return furthest

    def _reached(self, known: list[str]) -> list[str]:
        """The values before this line's that share memory with one of ``known``, themselves included."""
        latest = f"v{len(self.lines) - 1}"
        return [key for key in self._memory["cpu"].reached(known) if key != latest]

    def _alias_difference(self, name: str) -> str:
        for theirs, ours in zip(tensors(self.cpu[name]), tensors(self.ours[name]), strict=True):
            if theirs.numel() == 0:
                continue
            mine, others = (self._sharing(side, x, name) for side, x in (("ours", ours), ("cpu", theirs)))
            if mine != others:
                return f"shares memory with {mine} instead of {others}"
            if mine and ours.storage_offset() != theirs.storage_offset():
                return f"storage offset {ours.storage_offset()} instead of {theirs.storage_offset()}"
        return ""

    def _sharing(self, side: str, value: Tensor, name: str) -> list[str]:
        return [key for key in self._memory[side].sharing(value) if key != name]

    def _take_over_strides(self, name: str) -> None:
        """Gives results of the device that share memory with nothing the CPU's strides, for later lines to agree."""
        if any(self._sharing("cpu", x, name) for x in tensors(self.cpu[name])):
            return
        wanted = iter(tensors(self.cpu[name]))
        self._set(
            name,
            tree_map(lambda x: _laid_out_as(x, next(wanted)) if isinstance(x, Tensor) else x, self.ours[name]),
            self.cpu[name],
        )

    def _take_over(self, names: list[str]) -> None:
        """Gives the device the CPU's contents."""
        for key in self._reached(names):
            for ours, theirs in zip(tensors(self.ours[key]), tensors(self.cpu[key]), strict=True):
                if ours.shape != theirs.shape:
                    with torch.inference_mode(ours.is_inference()):
                        ours.resize_(theirs.shape)
                _replace(ours, theirs)
        name = f"v{len(self.lines) - 1}"
        for ours, theirs in zip(tensors(self.ours[name]), tensors(self.cpu[name]), strict=True):
            _replace(ours, theirs)


def _is_so_in_graphs(line: str, cpu: Namespace, ours: Exception | None) -> bool:
    """Whether a line through ``torch.compile`` is refused, or is not, by PyTorch's own compiler for the CPU as well."""
    by_it = {**cpu, "compiled": lambda function, *inputs: torch.compile(function)(*inputs)}
    return line.startswith("compiled(") and (_run(line, by_it)[1] is None) == (ours is None)


def _run(line: str, values: Namespace) -> tuple[Any, Exception | None]:
    try:
        return evaluate(line, values), None
    except Exception as error:  # noqa: BLE001 - compared with the other side's
        return None, error


def _late_exception() -> Exception | None:
    """What the device reports at the end of its work, such as an index out of range."""
    try:
        torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - compared with the other side's
        return error
    return None


def exact_values(name: str, line: str, values: Namespace) -> Namespace:
    """The line in float64 with ``values`` as its operands: the operands afterwards, and the result as ``name``.
    Empty if the line has no float64 form."""
    return _evaluate(name, widened(line), values, widest, IN_DOUBLE)


#: A state in which functions of integers are computed in float64.
IN_DOUBLE = {"dtype": torch.float64}


def widest(x: Tensor) -> Tensor:
    """The numbers in float64, or complex128."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _evaluate(
    name: str, line: str, values: Namespace, change: Callable[[Tensor], Tensor], state: dict[str, Any]
) -> Namespace:
    names = namespace("cpu") | {"STATE": state}
    for key, value in copy.deepcopy(values).items():
        names[key] = tree_map(lambda x: change(x) if is_inexact(x) else x, value)
    names[name], error = _run(line, names)
    return {} if error else {key: names[key] for key in (name, *values)}


#: In one of them terms that cancel may happen to lose nothing.
_SHAKES = 4


def shake(x: Tensor, salt: int = 0) -> Tensor:
    """Some elements a unit larger, the others a unit smaller, in no order, in which sums would cancel the change;
    others with another ``salt``."""
    generator = torch.Generator().manual_seed(x.numel() + (salt << 32))
    signs = torch.randint(2, x.shape, generator=generator).to(x.dtype) * 2 - 1
    return x * (1 + signs * torch.finfo(x.dtype).eps)


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference of two elements that are finite."""
    finite = one.isfinite() & other.isfinite()
    return float((one - other)[finite].abs().max()) if finite.any() else 0.0


def is_inexact(value: Any) -> bool:
    """Whether something is a tensor of numbers that are rounded."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _repeats(value: Tensor) -> bool:
    return any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True))


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _laid_out_as(ours: Tensor, theirs: Tensor) -> Tensor:
    """The device's tensor with the CPU's strides and offset: where in a storage of its own a result begins is not
    said."""
    offset = theirs.storage_offset()
    if (ours.stride(), ours.storage_offset()) == (theirs.stride(), offset) or ours.numel() == 0:
        return ours
    length = offset + 1 + sum((n - 1) * s for n, s in zip(theirs.shape, theirs.stride(), strict=True))
    with torch.inference_mode(ours.is_inference()):
        storage = torch.empty(length, dtype=ours.dtype, device=ours.device)
        return storage.as_strided(theirs.shape, theirs.stride(), offset).copy_(ours)


def _same_memory(ours: Tensor, theirs: Tensor) -> bool:
    """Whether what lies around two tensors is the same, too, if they lie in the same way."""
    count, other = (x.untyped_storage().nbytes() // x.itemsize for x in (ours, theirs))
    if count != other or ours.stride() != theirs.stride():
        return True
    mine, its = (x.as_strided((count,), (1,), 0).cpu() for x in (ours, theirs))
    return torch.equal(mine.nan_to_num(), its.nan_to_num()) if is_inexact(its) else torch.equal(mine, its)


def _same_bits(ours: Tensor, theirs: Tensor) -> bool:
    if theirs.is_complex():  # of the halves among them the CPU cannot compare even two
        ours, theirs = (torch.view_as_real(x.resolve_conj()) for x in (ours, theirs))
    if not torch.equal(ours, theirs):
        return False
    return not theirs.is_floating_point() or torch.equal(ours.signbit(), theirs.signbit())


def _replace(ours: Tensor, theirs: Tensor) -> None:
    """Writes the CPU's contents into the device's tensor, whose elements may share memory."""
    with torch.inference_mode():
        if ours.device.type == "cpu" or theirs.numel() == 0:
            return
        for dim, step in enumerate(ours.stride()):
            if step == 0:
                ours, theirs = ours.narrow(dim, 0, 1), theirs.narrow(dim, 0, 1)
        if ours.stride() == theirs.stride():
            length = 1 + sum((n - 1) * s for n, s in zip(theirs.shape, theirs.stride(), strict=True))
            ours, theirs = (x.as_strided((length,), (1,), x.storage_offset()) for x in (ours, theirs))
        ours.copy_(theirs)


def _describe(key: str, ours: Tensor, theirs: Tensor, truth: Tensor | None) -> str:
    wide = [widest(x) for x in (ours, theirs)]
    wrong = (wide[0] != wide[1]) & ~(wide[0].isnan() & wide[1].isnan())
    error = torch.where(wrong, (wide[0] - wide[1]).abs().nan_to_num(torch.inf, torch.inf, torch.inf), 0.0)
    place = int(error.argmax()) if error.numel() else 0
    shown = [x.flatten()[place].item() for x in (ours, theirs)]
    exact = f", exactly {truth.flatten()[place].item()}" if truth is not None and truth.shape == theirs.shape else ""
    count = f"{key} {theirs.dtype}{list(theirs.shape)}: {int(wrong.sum())} differ"
    return f"{count}; [{place}] {shown[0]} for {shown[1]}{exact}"


def run(lines: list[str], device: str, announce: Callable[[str], None] = lambda line: None) -> Finding | None:
    """Runs a whole program line by line and returns the first finding."""
    sides = Sides(device, announce)
    for line in lines:
        _, finding, _ = sides.step(line)
        if finding:
            return finding
    return None
