# SPDX-License-Identifier: Apache-2.0
"""Libraries that import torchvision by themselves (transformers does) have to find one that loads."""

from __future__ import annotations

import os

import torchvision_wheel

if os.environ.get("OUTBOARD_TEST_ECOSYSTEM") == "1":
    torchvision_wheel.prepare()
