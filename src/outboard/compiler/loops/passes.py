# SPDX-License-Identifier: Apache-2.0
"""All rewrites of a loop nest. :func:`run_passes` runs them, in place, once: nobody changes a nest after it."""

from __future__ import annotations

import itertools
import math

import sympy
import torch

from ..tuning import Tuning
from .moves import keep_bits
from .nest import CHECKS, EXPENSIVE, LoopKernel, Region, Store, Value


def run_passes(kernel: LoopKernel, tuning: Tuning) -> None:
    """Rewrites a nest as it was recorded into the one that is scheduled and printed, in place.

    What is not needed goes. For devices with explicit vectors, the sum in gelu becomes one operation (also in nests
    that are not printed, because a product computes them), and loops leave terms to the next one. Narrow floats that
    are moved only become integers."""
    prune(kernel)
    if tuning.vectors:
        find_normal_cdf(kernel)
        keep_terms(kernel)
    keep_bits(kernel)


def prune(kernel: LoopKernel) -> None:
    """Removes values that no store needs, and buffers that nothing touches."""
    live: set[int] = set()
    work: list[Value] = []

    def need(expr: sympy.Expr) -> None:
        work.extend(kernel.indirect[s] for s in expr.free_symbols if s in kernel.indirect)

    for statement in kernel.statements():
        if isinstance(statement, Store):
            work.append(statement.value)
            need(statement.index)
        elif statement.op in CHECKS:
            work.append(statement)
    while work:
        value = work.pop()
        if id(value) in live:
            continue
        live.add(id(value))
        work.extend(value.args)
        if value.mask is not None:
            work.append(value.mask)
        need(value.index)
    for region in kernel.regions:
        region.body = [s for s in region.body if isinstance(s, Store) or id(s) in live]
    kernel.regions = [region for region in kernel.regions if region.body or region.after]
    used = {s.buffer for s in kernel.statements() if isinstance(s, Store) or s.op == "load"}
    kernel.buffers = {name: dtype for name, dtype in kernel.buffers.items() if name in used}
    kernel.written &= used


def keep_terms(kernel: LoopKernel) -> None:
    """Makes a loop leave terms of its reduction where the next loop stores its result, if that computes them again.

    A softmax then takes each ``exp`` once: for the sum, into the output, from where the division takes it back."""
    loops = [region for region in kernel.regions if region.in_reduction]
    kept = [_keep_terms(kernel, before, region) for before, region in itertools.pairwise(loops)]
    if any(kept):
        prune(kernel)


def _keep_terms(kernel: LoopKernel, before: Region, region: Region) -> bool:
    """Does so for two loops that follow each other. Returns whether it did."""
    store = _only_effect(kernel, region)
    if store is None or store.atomic_add or kernel.indirect.keys() & store.index.free_symbols:
        return False
    numbers = _value_numbers(kernel)
    terms = {numbers[id(v)]: v for v in before.body if isinstance(v, Value) and v.op in EXPENSIVE}
    for value in reversed(region.body):
        if not isinstance(value, Value) or value.dtype != kernel.buffers[store.buffer]:
            continue
        term = terms.get(numbers[id(value)])
        if term is not None and _suffices(value, store.value):
            before.body.append(Store(store.buffer, store.index, term))
            value.op, value.args, value.buffer, value.index = "load", (), store.buffer, store.index
            return True
    return False


def _only_effect(kernel: LoopKernel, region: Region) -> Store | None:
    """The store that is all a loop does, to a buffer that nothing else touches; None if there is no such."""
    stores = [s for s in region.body if isinstance(s, Store)]
    if len(stores) != 1 or any(isinstance(s, Value) and s.op in ("reduce", *CHECKS) for s in region.body):
        return None
    touched = [s.buffer for s in kernel.statements() if isinstance(s, Store) or s.op == "load"]
    return stores[0] if touched.count(stores[0].buffer) == 1 else None


def _suffices(value: Value, result: Value) -> bool:
    """Whether ``result`` can be computed from ``value`` without any load. The buffer that terms are left in may be an
    operand's, which is not to be read any more then."""
    work, seen = [result], {id(value)}
    while work:
        needed = work.pop()
        if needed.op == "load" and id(needed) not in seen:
            return False
        if id(needed) in seen or needed.op == "reduce":
            continue
        seen.add(id(needed))
        work.extend(needed.args)
    return True


def find_normal_cdf(kernel: LoopKernel) -> None:
    """Makes one operation of what gelu and its gradient compute, ``(1 + erf(x / sqrt(2))) / 2``.

    That is cheaper than ``erf``, which must be exact near 0, where the sum is not."""
    users: dict[int, list[Value | Store]] = {}
    for statement in kernel.statements():
        for operand in (statement.value,) if isinstance(statement, Store) else statement.args:
            users.setdefault(id(operand), []).append(statement)
    halves = [value for value in kernel.statements() if isinstance(value, Value) and _is_sum_with_erf(value)]
    found = [_halve(value, users.get(id(value), [])) for value in halves]
    if any(found):
        prune(kernel)


def _constant_factor(value: Value, constant: float) -> Value | None:
    """What ``constant`` (a float) is multiplied by in a product, else None."""
    if value.op != "mul" or value.dtype != torch.float32:
        return None
    for one, other in (value.args, value.args[::-1]):
        if one.op == "constant" and math.isclose(one.constant, constant, rel_tol=1e-6):
            return other
    return None


def _scaled_argument(value: Value) -> Value | None:
    """``x`` if a value is ``erf(x / sqrt(2))`` in float, else None."""
    return _constant_factor(value.args[0], math.sqrt(0.5)) if value.op == "erf" else None


def _is_sum_with_erf(value: Value) -> bool:
    """Whether a value is ``erf(x / sqrt(2)) + 1``, in either order."""
    if value.op != "add":
        return False
    pairs = (value.args, value.args[::-1])
    return any(one.op == "constant" and one.constant == 1 and _scaled_argument(other) for one, other in pairs)


def _halve(total: Value, users: list[Value | Store]) -> bool:
    """Makes ``total``, ``1 + erf(x / sqrt(2))``, its half, if each user is a product that has a half among its factors,
    which then goes. Returns whether it did."""
    products = [user for user in users if isinstance(user, Value) and user.op == "mul"]
    others = [product.args[product.args[0] is total] for product in products]
    is_half = [other.op == "constant" and other.constant == 0.5 for other in others]
    factors = [None if half else _constant_factor(other, 0.5) for half, other in zip(is_half, others, strict=True)]
    if len(products) < len(users) or any(f is None and not half for f, half in zip(factors, is_half, strict=True)):
        return False
    for product, factor in zip(products, factors, strict=True):
        product.op, product.args = ("identity", (total,)) if factor is None else ("mul", (factor, total))
    scaled = next(filter(None, map(_scaled_argument, total.args)))
    total.op, total.args = "normal_cdf", (scaled,)
    return True


def _value_numbers(kernel: LoopKernel) -> dict[int, int]:
    """Maps the ``id`` of each value to a number; values that are computed alike have the same."""
    table: dict[tuple[object, ...], int] = {}
    numbers: dict[int, int] = {}
    for value in kernel.statements():
        if not isinstance(value, Value):
            continue
        key = (
            value.op, value.dtype, tuple(numbers[id(a)] for a in value.args), value.buffer, value.index,
            None if value.mask is None else numbers[id(value.mask)], repr(value.constant), value.size,
            value.src_dtype, value.name if value.op == "reduce" else "",
        )  # fmt: skip
        numbers[id(value)] = table.setdefault(key, len(table))
    return numbers
