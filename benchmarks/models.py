# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 and BERT-base: forward and training step, four ways, with checked results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from examples.measure import Timing, interleave
from examples.models import Bert, resnet50
from examples.variant import Check, Reference, four_ways

#: A model, its inputs and the right labels.
Job = tuple[nn.Module, Tensor, Tensor]


def resnet() -> Job:
    """ResNet-50 on 4 images of 224 x 224."""
    return resnet50(), torch.randn(4, 3, 224, 224), torch.randint(1000, (4,))


def bert() -> Job:
    """BERT-base on 4 sequences of 128 tokens, predicting every token."""
    model = Bert()
    tokens = torch.randint(model.config.vocabulary, (4, 128))
    return model, tokens, torch.randint(model.config.vocabulary, (4, 128))


MODELS: dict[str, Callable[[], Job]] = {"ResNet-50": resnet, "BERT-base": bert}


def measure(name: str, device: torch.device, repeats: int, check: Check) -> Iterator[tuple[str, dict[str, Timing]]]:
    """Yields (job, times by way) for forward and training of one model, after checking the results of all ways."""
    torch.manual_seed(0)
    model, inputs, labels = MODELS[name]()
    variants = four_ways(model, inputs, labels, device)
    reference = Reference(model, inputs, labels)
    for way, variant in variants.items():
        reference.compare(check, f"{name}, {way}", variant)
    yield f"{name} forward", interleave({way: variant.forward for way, variant in variants.items()}, repeats)
    yield f"{name} training", interleave({way: variant.step for way, variant in variants.items()}, repeats)
