# SPDX-License-Identifier: Apache-2.0
"""Tiles: the layout that the simulator's compiler has tensors of floats in, where the chip has a size for them.

A tensor of two dimensions and more is a matrix with the last dimension in memory as columns, and all others as rows. It
is cut into squares, row by row of squares, each of which lies in one piece; those at the edges have zeros in what is
beyond.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import Layout, Operand

if TYPE_CHECKING:
    from .sim import Program


def layout_of(operand: Operand, side: int) -> Layout | None:
    """The layout of an operand in tiles of ``side`` x ``side``; None of one that has to lie as it does."""
    if not operand.is_dense or not operand.dtype.is_floating_point:
        return None
    sizes = [size for size in _in_memory(operand) if size != 1]
    if len(sizes) < 2:
        return None
    rows, columns = math.prod(sizes[:-1]), sizes[-1]
    arranged = (-(-rows // side), -(-columns // side), side, side)
    return Layout(f"tiles {side}x{side}", operand.dtype, (rows, columns), operand.dtype, arranged)


def to_tiles(program: Program, matrix: int, layout: Layout) -> int:
    """Lines that make tiles of a matrix."""
    across, along, side, _ = layout.arranged_sizes
    for dim, size in enumerate((across * side, along * side)):
        sizes = [*program.shapes[matrix]]
        if sizes[dim] != size:
            sizes[dim] = size
            around = program.full(0.0, sizes, layout.dtype)
            matrix = program.emit("update", layout.dtype, sizes, f"%{around}", f"%{matrix}", dim, 0, 1)
    return program.permute(program.reshape(matrix, (across, side, along, side)), (0, 2, 1, 3))


def from_tiles(program: Program, tiles: int, layout: Layout) -> int:
    """Lines that make the matrix of its tiles."""
    across, along, side, _ = layout.arranged_sizes
    matrix = program.reshape(program.permute(tiles, (0, 2, 1, 3)), (across * side, along * side))
    for dim, size in enumerate(layout.sizes):
        matrix = program.slice(matrix, dim, 0, size)
    return matrix


def read(program: Program, operand: Operand, layout: Layout) -> int:
    """The next input, which is in a layout, as the tensor that it is."""
    matrix = from_tiles(program, program.input(layout.arranged_dtype, layout.arranged_sizes), layout)
    order = operand.memory_order
    return program.permute(
        program.reshape(matrix, _in_memory(operand)), [order.index(dim) for dim in range(len(order))]
    )


def written(program: Program, value: int, operand: Operand, layout: Layout) -> int:
    """A result of the graph in a layout."""
    return to_tiles(program, program.reshape(program.permute(value, operand.memory_order), layout.sizes), layout)


def _in_memory(operand: Operand) -> list[int]:
    return [int(operand.sizes[dim]) for dim in operand.memory_order]
