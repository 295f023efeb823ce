# SPDX-License-Identifier: Apache-2.0
"""The sizes of a chip: more of anything is never slower, and nothing measured is faster than a specification allows."""

from __future__ import annotations

from examples import size_a_chip
from outboard import Chip


def test_more_is_never_slower() -> None:
    workload = size_a_chip.decode(Chip.known("a100"), batch=8)
    rates = {(b, a): workload.rate(chip) for b, a, chip in size_a_chip.variants(Chip.known("a100"))}
    for (bandwidth, arithmetic), rate in rates.items():
        assert all(rate <= other for (b, a), other in rates.items() if b >= bandwidth and a >= arithmetic)


def test_specifications_are_not_slower_than_what_was_measured() -> None:
    for one in size_a_chip.PUBLISHED:
        chip = Chip.known(one.chip)
        assert one.workload(chip).rate(chip) > one.rate, one.what
