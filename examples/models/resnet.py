# SPDX-License-Identifier: Apache-2.0
"""Residual networks (He et al., 2015), in the variant that puts a block's stride on its 3x3 convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution without bias, "same" padding, then batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """``relu(body(x) + shortcut(x))``; the shortcut is the identity where shapes allow."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def basic_block(inputs: int, width: int, stride: int) -> Block:
    """Two 3x3 convolutions."""
    body = nn.Sequential(convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, width, 3))
    return Block(body, inputs, width, stride)


def bottleneck_block(inputs: int, width: int, stride: int) -> Block:
    """1x1 down, 3x3, 1x1 up to four times the width."""
    body = nn.Sequential(
        convolution(inputs, width, 1),
        nn.ReLU(),
        convolution(width, width, 3, stride),
        nn.ReLU(),
        convolution(width, 4 * width, 1),
    )
    return Block(body, inputs, 4 * width, stride)


class ResNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes).

    ``depths`` is the number of blocks in each of the four stages; ``bottleneck`` chooses the kind of block.
    """

    def __init__(self, depths: tuple[int, int, int, int], *, bottleneck: bool, classes: int = 1000) -> None:
        super().__init__()
        make_block, expansion = (bottleneck_block, 4) if bottleneck else (basic_block, 1)
        self.stem = nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for index in range(depth):
                blocks.append(make_block(channels, width, 2 if stage > 0 and index == 0 else 1))
                channels = width * expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.stem(images))
        return self.head(features.mean((2, 3)))


def resnet18(classes: int = 1000) -> ResNet:
    return ResNet((2, 2, 2, 2), bottleneck=False, classes=classes)


def resnet50(classes: int = 1000) -> ResNet:
    return ResNet((3, 4, 6, 3), bottleneck=True, classes=classes)
