# SPDX-License-Identifier: Apache-2.0
"""Exports a small network for ``classify.cpp``: the model, images, and the scores that Python computes for them.

usage: python -m examples.cpp_runner.export_model DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import outboard


class Classifier(nn.Module):
    """Scores of ten classes for images of 16x16 grey pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.scores = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (N, 10) of images (N, 1, 16, 16)."""
        return self.scores(self.features(images).flatten(1)).softmax(1)


def main(directory: Path) -> None:
    """Writes model.obm, images.bin and expected.bin."""
    device = torch.accelerator.current_accelerator()
    torch.manual_seed(0)
    model = Classifier().to(device).eval()
    images = torch.randn(6, 1, 16, 16)
    batch = torch.export.Dim("batch", min=1, max=256)
    path = directory / "model.obm"
    outboard.export(model, images[:2].to(device), path=path, dynamic={"images": {0: batch}})
    expected = outboard.load(path)(images.to(device)).cpu()
    (directory / "images.bin").write_bytes(images.numpy().tobytes())
    (directory / "expected.bin").write_bytes(expected.numpy().tobytes())
    print(f"wrote {path} with {images.shape[0]} images and what Python makes of them")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
