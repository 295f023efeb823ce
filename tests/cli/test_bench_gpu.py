# SPDX-License-Identifier: Apache-2.0
"""Two PyTorchs side by side: that the table tells what was measured, what differs and what failed."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu import Peer, cells, difference, measure
from benchmarks.gpu_calls import calls


@pytest.fixture(scope="module")
def peers(device: str) -> Iterator[tuple[Peer, Peer]]:
    """The device, and the CPU in the place of a GPU."""
    both = Peer(sys.executable, device, own=True), Peer(sys.executable, "cpu", own=True)
    yield both
    for peer in both:
        peer.end()


def test_a_row(peers: tuple[Peer, Peer]) -> None:
    row = measure("add of 16 numbers", *peers, rounds=3)
    assert row["ratio"] == row["device"] / row["peer"] > 0
    assert row["differs"] == 0
    assert cells(row)[0] == "add of 16 numbers"


def test_what_fails_is_said(peers: tuple[Peer, Peer]) -> None:
    row = measure("no such call", *peers, rounds=2)
    assert "KeyError" in row["device error"]
    assert "KeyError" in cells(row)[-1]


def test_a_process_that_ends_is_made_again(peers: tuple[Peer, Peer]) -> None:
    _, peer = peers
    peer.end()
    assert "KeyError" in peer.ask("no such call", 1)["error"]


def test_differences() -> None:
    assert difference([1.0, 2.0], [1.0, 4.0]) == 0.5
    assert difference([0.0], [0.0]) == 0
    assert math.isnan(difference([math.nan], [1.0]))


def test_calls_have_the_same_names_and_numbers_everywhere(device: str) -> None:
    assert calls(device).keys() == calls("cpu").keys()
    for place in (device, "cpu"):
        torch.manual_seed(0)
        result = calls(place)["add of 16 numbers"]()()
        torch.manual_seed(0)
        torch.testing.assert_close(result.cpu(), torch.randn(16) + torch.randn(16))
