# SPDX-License-Identifier: Apache-2.0
"""Calls of functions on another rank, with tensors of the device."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed.rpc as rpc

from tests.distributed.ranks import device_type

DEVICE = device_type()


def double(inputs: dict[str, Any]) -> list[torch.Tensor]:
    assert inputs["x"].device.type == DEVICE and inputs["y"].device.type == "cpu"
    return [inputs["x"] * 2, inputs["y"] * 2, inputs["x"].to(torch.float16)]


def check() -> None:
    x, y = torch.arange(6.0, device=DEVICE).reshape(2, 3), torch.ones(2)
    results = rpc.rpc_sync("other", double, ({"x": x, "y": y},))
    assert [result.device.type for result in results] == [DEVICE, "cpu", DEVICE]
    assert torch.equal(results[0].cpu(), x.cpu() * 2) and torch.equal(results[1], y * 2)
    assert results[2].dtype == torch.float16
    part = x.t()[1:]  # not all of a storage, and not in its order
    total = rpc.rpc_async("other", torch.add, (part, 1)).wait()
    assert total.device.type == DEVICE and torch.equal(total.cpu(), part.cpu() + 1)
    remote = rpc.remote("other", torch.mul, (x, x))
    assert torch.equal(remote.to_here().cpu(), x.cpu() ** 2)
    assert torch.equal(rpc.rpc_sync("other", torch.add, (y, 1)), y + 1)
    for source, target in ((f"{DEVICE}:0", f"{DEVICE}:1"), (f"{DEVICE}:0", "cpu"), ("cpu", f"{DEVICE}:0")):
        for make in (
            lambda a, b: rpc.TensorPipeRpcBackendOptions().set_device_map("other", {a: b}),
            lambda a, b: rpc.TensorPipeRpcBackendOptions(device_maps={"other": {a: b}}),
        ):
            try:
                make(source, target)
            except NotImplementedError as error:
                assert f"from {source} to {target}" in str(error)
            else:
                raise AssertionError("a device map was taken")


def main() -> None:
    rank = int(os.environ["RANK"])
    names = ("asker", "other")
    same = {names[1 - rank]: {f"{DEVICE}:0": f"{DEVICE}:0"}}
    options = rpc.TensorPipeRpcBackendOptions(device_maps=same)
    options.set_device_map(names[1 - rank], same[names[1 - rank]])
    rpc.init_rpc(names[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        check()
    rpc.shutdown()


if __name__ == "__main__":
    main()
