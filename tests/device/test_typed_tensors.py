# SPDX-License-Identifier: Apache-2.0
"""`torch.<device>.FloatTensor` and its siblings, against those of the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


@pytest.mark.parametrize("kind", _KINDS)
def test_they_make_what_the_host_makes(device: str, device_module: ModuleType, kind: str) -> None:
    ours, theirs = getattr(device_module, f"{kind}Tensor"), getattr(torch, f"{kind}Tensor")
    assert ours([0, 1, 1]).device == torch.device(device, 0)
    torch.testing.assert_close(ours([0, 1, 1]).cpu(), theirs([0, 1, 1]))
    assert ours(2, 3).shape == theirs(2, 3).shape == ours(torch.Size([2, 3])).shape and ours().numel() == 0
    assert isinstance(ours([1]), ours) and not isinstance(theirs([1]), ours) and not isinstance(ours([1]), theirs)
    assert ours([1]).type() == ours.__name__ == f"torch.{device}.{kind}Tensor"
    assert repr(ours) == f"<class 'torch.{device}.{kind}Tensor'>"


def test_type_moves_and_converts(device: str, device_module: ModuleType) -> None:
    moved = torch.tensor([1.5, 2.5]).type(device_module.LongTensor)
    assert isinstance(moved, device_module.LongTensor) and moved.tolist() == [1, 2]
    assert isinstance(moved.type(f"torch.{device}.HalfTensor"), device_module.HalfTensor)
    assert isinstance(moved.type(torch.FloatTensor), torch.FloatTensor)
