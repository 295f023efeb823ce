# SPDX-License-Identifier: Apache-2.0
"""What is decided about reductions whatever the device: pieces of long ones, and sums in parts."""

from __future__ import annotations

import sympy

from .accesses import Accesses
from .nest import LoopKernel, Region, Value
from .schedule import Combination, Terms
from .splits import ceildiv, minimum

#: Terms that one accumulator sums before the partial sum is added to the total, exactly: what long sums round off is
#: what short ones do.
TERMS = 16
#: Terms of a loop that the compiler of the dialect can take as one.
BLOCK = 8192
#: At most this many results are reduced in pieces; more keep the cores busy with a work-item each.
FEW = 8
#: Pieces per compute unit, so that a core that comes late or is slow does not hold up the others.
PIECES = 8
#: Boundaries of pieces are multiples of this: only the last piece has a rest that fills no vectors.
PIECE_ALIGNMENT = 1024
#: Bytes of a partial result, whatever its type.
SLOT = 8


def finds_places(kernel: LoopKernel) -> bool:
    """Whether some reduction is one to the place of a term."""
    return any(value.finds_place for value in kernel.values())


def reduces_once(kernel: LoopKernel) -> bool:
    """Whether the kernel is one loop of reductions and what follows from its results."""
    first, *rest = kernel.regions
    return first.in_reduction and not any(region.in_reduction for region in rest)


def pays_pieces(accesses: Accesses, long: int) -> bool:
    """Whether the kernel consists of so few reductions, and possibly so long ones, that several work-items share each.
    ``long`` terms are worth it."""
    if accesses.r is None or not reduces_once(accesses.kernel) or finds_places(accesses.kernel):
        return False
    results, terms = accesses.x.numel, accesses.r.numel
    return bool(results.is_Integer and results <= FEW and not (terms.is_Integer and terms * results < long))


def length_of_pieces(terms: sympy.Expr, pieces: sympy.Expr) -> sympy.Expr:
    """The terms of each piece but the last."""
    return ceildiv(ceildiv(terms, pieces), sympy.Integer(PIECE_ALIGNMENT)) * PIECE_ALIGNMENT


def slots_of(value: Value) -> int:
    """How many slots the partial result of a reduction takes: a term that was looked for has its place beside it."""
    return 2 if value.finds_place else 1


def combination_of(accesses: Accesses, pieces: sympy.Expr, items: int) -> Combination:
    """The launch that combines partial results, by so many work-items for each reduction."""
    results, slots = accesses.x.numel, sum(map(slots_of, accesses.kernel.regions[0].reductions()))
    grid = minimum(sympy.S.One, pieces - 1) * items, results
    return Combination(grid, SLOT * slots * results * pieces, (items, 1, 1))


def sums_in_parts(accesses: Accesses, region: Region, together: int = 1) -> tuple[str, ...]:
    """The sums that are added up in parts: those of floats, unless all terms are few for ``together`` accumulators."""
    assert accesses.r is not None
    terms = accesses.r.numel
    if terms.is_Integer and terms <= TERMS * together:
        return ()
    return tuple(value.name for value in region.reductions() if value.is_sum_of_floats)


def one_by_one(accesses: Accesses, region: Region, together: int = 1) -> Terms:
    """Terms of a loop that are taken one at a time: all by one work-item, in lanes along the points if it has vectors,
    or by ``together`` work-items in turn."""
    sums = sums_in_parts(accesses, region, together)
    each = TERMS if sums else BLOCK
    return Terms(in_parts=sums, each=each, all=each, block=each)
