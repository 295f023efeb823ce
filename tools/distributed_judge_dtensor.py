# SPDX-License-Identifier: Apache-2.0
"""An OpInfo of PyTorch's as test of DTensor: through DTensorTestBase, on a distributed tensor in every placement.

``case_class`` makes a class with one test for each float32 OpInfo. A test takes the first sample of the operator that
has tensors, runs the operator on them, and then on what PyTorch's DTensorConverter makes of them: each tensor whole on
every rank, or split in one of its dimensions, in all combinations.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

import distributed_judge_names as naming
import torch
import torch.distributed as dist

#: Placements of an operator's tensors that are tried.
COMBINATIONS = 12
#: Results that no two processes share: memory that nobody has written, or random numbers.
UNDETERMINED = re.compile(
    r"^(empty|new_empty|empty_\w+|new_empty_\w+|rand|randn|randint|normal|bernoulli|multinomial)\b|"
    r"dropout|rrelu|uniform|exponential|geometric|log_normal|cauchy|rand_like|randn_like|randint_like"
)


def operators(cls: type, pattern: str) -> list[str]:
    """Names of the operators of a class made by :func:`case_class`, with their variant, as OpInfo has them."""
    names = (name[len("test_") :] for name in dir(cls) if name.startswith("test_"))
    return [name for name in names if re.search(pattern, name)]


def case_class(device: str, ranks: int) -> type:
    """The class of tests for tensors on ``device``, with PyTorch's default backend for it.

    For "cpu" that is PyTorch as it is, over gloo.
    """
    accelerator = torch._C._get_privateuse1_backend_name()
    ours = dist.Backend.default_device_backend_map[accelerator]
    os.environ["WORLD_SIZE"] = str(ranks)
    names = naming.Names(accelerator, ours, "nccl")
    with naming.unopened(accelerator, 4):
        module: Any = naming.load_dtensor(names, ranks)
        from torch.testing._internal.common_methods_invocations import op_db

        found = [op for op in op_db if op.supports_dtype(torch.float32, "cpu")]
    base: Any = module.DTensorTestBase

    class Operators(base):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return ranks

        @property
        def device_type(self) -> str:
            return device

        @property
        def backend(self) -> str:
            return "gloo" if device == "cpu" else f"cpu:gloo,{accelerator}:{ours}"

    for op in found:
        variant = f"_{op.variant_test_name}" if op.variant_test_name else ""
        name = f"test_{op.name}{variant}".replace(".", "_")
        if not UNDETERMINED.search(op.name):
            setattr(Operators, name, module.with_comms(_test_of(op, module)))
    Operators.__name__ = "DTensorOperators"
    return Operators


def _test_of(op: Any, module: Any) -> Any:
    def test(self: Any) -> None:
        mesh = self.build_device_mesh()
        torch.manual_seed(0)
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))
        move = functools.partial(_moved, self.device_type)
        args, kwargs = torch.utils._pytree.tree_map(move, ((sample.input, *sample.args), sample.kwargs))
        converter = module.DTensorConverter(mesh, args, kwargs)
        expected = None
        for dist_args, dist_kwargs in itertools.islice(converter, COMBINATIONS):
            self.assertTrue(converter.successful(), "the operator has no tensor that can be distributed")
            results = _tensors(op.op(*dist_args, **dist_kwargs))
            if expected is None:  # not before DTensor has shown that it knows the operator at all
                expected = _tensors(op.op(*args, **kwargs))
            self.assertEqual([_whole(tensor) for tensor in results], expected, msg=_placements(dist_args))
        self.assertIsNotNone(expected)

    return test


def _moved(device: str, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _tensors(result: Any) -> list[torch.Tensor]:
    leaves: Iterable[Any] = torch.utils._pytree.tree_leaves(result)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, dist.tensor.DTensor) else tensor


def _placements(arguments: Any) -> Any:
    leaves = torch.utils._pytree.tree_leaves(arguments)
    placed = [str(leaf.placements) for leaf in leaves if isinstance(leaf, dist.tensor.DTensor)]
    return lambda text: f"{text}\nplacements {', '.join(placed)}"


if __name__ == "__main__":
    sys.exit("run tools/distributed_judge.py --suites dtensor")
