# SPDX-License-Identifier: Apache-2.0
"""What exceptions and warnings say, without what differs from device to device and from run to run."""

from __future__ import annotations

import re


def plain(text: str, device: str) -> str:
    """A message without the name of the device, and without what only this device adds."""
    text = re.sub(rf"\b{device}(:\d)?", "cpu", text.split("\nException raised")[0])
    text = re.sub(r" \(Triggered internally.*", "", text, flags=re.S)
    text = re.sub(r"\sValue: .*?(?=Declaration:|$)", "", text, flags=re.S)  # a tensor as text
    text = re.sub(r"\d{7,}", "...", text)  # what happened to be in memory
    return " ".join(text.split())
