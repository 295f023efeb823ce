# SPDX-License-Identifier: Apache-2.0
"""What ``accuracy.py`` gives functions to compute: numbers of all kinds in random order, so that one vector has all."""

from __future__ import annotations

import torch
from accuracy_functions import Function

SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 1e10, -1e10, 1e-6, 1.2e-38, -1.2e-38, 1e-45, 3e38)
SPECIAL += (float("inf"), float("-inf"), float("nan"), 65504.0, 6e-8, 100.0, -100.0, 30.0, 1e300, 5e-324)
#: Neighbours of a branch point that are tried, on either side.
AROUND = 48
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Arguments:
    """The arguments of all functions of one dtype: the same but for the neighbours of the points where they branch."""

    def __init__(self, dtype: torch.dtype, count: int, seed: int) -> None:
        self.dtype = dtype
        self.count = count
        self.generator = torch.Generator().manual_seed(seed)
        self._numbers: list[torch.Tensor] = []
        self._near: list[torch.Tensor] = []

    def of(self, function: Function, count: int | None = None) -> list[torch.Tensor]:
        """One tensor for each argument: all values of a half where there is one argument, else at most ``count``
        numbers of all kinds; of several arguments, some pairs are equal."""
        if self.dtype.itemsize == 2 and function.arity == 1:
            values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(self.dtype)
            return [values[torch.randperm(len(values), generator=self.generator)]]
        count = min(count or self.count, self.count)
        near = _neighbours(function, self.dtype)
        given = []
        for number in range(function.arity):
            numbers, places = self._pool(number)
            values = numbers[:count].clone()
            places = places[: int(torch.searchsorted(places, count))]
            values[places] = near[self._integers(len(near), len(places))]
            given.append(values)
        for other in given[1:]:
            equal = self._integers(count, count // 16)
            other[equal] = given[0][equal]
        return given

    def _integers(self, limit: int, count: int) -> torch.Tensor:
        return torch.randint(0, limit, (count,), generator=self.generator)

    def _pool(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of an argument, and the places of an eighth of them that are those of each function."""
        while len(self._numbers) <= number:
            self._numbers.append(self._mixed())
            self._near.append((torch.rand(self.count, generator=self.generator) < 0.125).nonzero().flatten())
        return self._numbers[number], self._near[number]

    def _mixed(self) -> torch.Tensor:
        """Of all exponents, of usual size, near 1 and special ones."""
        integers = _INTEGERS[self.dtype.itemsize]
        info, third = torch.iinfo(integers), self.count // 3
        special = torch.tensor(SPECIAL, dtype=torch.float64).to(self.dtype)
        special = special[self._integers(len(special), self.count // 64 + 1)]
        scales = 10.0 ** torch.randint(-3, 4, (third,), generator=self.generator)
        usual = (torch.randn(third, generator=self.generator, dtype=torch.float64) * scales).to(self.dtype)
        near_one = (torch.rand(third, generator=self.generator, dtype=torch.float64) * 4 - 2).to(self.dtype)
        left = max(self.count - 2 * third - len(special), 1)
        bits = torch.randint(info.min, info.max, (left,), generator=self.generator, dtype=integers).view(self.dtype)
        mixed = torch.cat([usual, near_one, special, bits])[: self.count]
        return mixed[torch.randperm(self.count, generator=self.generator)]


def _neighbours(function: Function, dtype: torch.dtype) -> torch.Tensor:
    """The numbers around the points where a function branches, of both signs."""
    places = {0.0, 1.0, 2.0, *function.branches}
    points = torch.tensor([sign * p for p in sorted(places) for sign in (1, -1)], dtype=torch.float64).to(dtype)
    integers = _INTEGERS[dtype.itemsize]
    steps = torch.arange(-AROUND, AROUND + 1, dtype=integers)
    return (points.view(integers)[:, None] + steps).view(dtype).reshape(-1)


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in rows of 15 with gaps between them, which no vector fills; those that fill no row are lost."""
    rows = len(tensor) // 15
    padded = torch.zeros(rows, 16, dtype=tensor.dtype, device=tensor.device)
    padded[:, :15] = tensor[: rows * 15].view(-1, 15)
    return padded[:, :15]
