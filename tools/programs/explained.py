# SPDX-License-Identifier: Apache-2.0
"""What a program may show otherwise than on the CPU: what is PyTorch's own, or by design."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explained:
    """A finding of ``kind`` in programs whose names match ``programs``, whose text contains a match of ``text``."""

    programs: str
    kind: str
    text: str
    reason: str


_ANY = ".*"

EXPLAINED = (
    Explained(_ANY, "warning", r"torch\.jit\.script|_prims_common\.check|reduce_op", "PyTorch's compiler imports it"),
    Explained(_ANY, "warning", "_stable_hash_for_caching", "of PyTorch's caches, which the CPU's oracle has not"),
    Explained(_ANY, "state", r"'sys.path'\] instead", "PyTorch's compiler imports setuptools, the first time"),
    Explained(_ANY, "state", "'precision cuda|'signals'", "is set when PyTorch first needs it, which is on the CPU"),
    Explained(
        r"compiling\.(scans|maps)",
        "exception",
        "DataDependentOutputException",
        "PyTorch's compiler raises this for the CPU as well, whose oracle it is not",
    ),
    Explained(_ANY, "form", r"^not refused instead of .*not implemented for", "the CPU has no kernel for the dtype"),
    Explained(_ANY, "form", r"Error: \w+ is not implemented for .* instead of NotImpl", "the CPU names its own kernel"),
    Explained(
        r"layouts\.coordinates",
        "form",
        "^True instead of False",
        "a sum of sparse tensors with more entries than elements is coalesced, as on CUDA",
    ),
    Explained(r"modules\.losses_refuse", "form", "Expected targets of shape", "says what would fit"),
    Explained(
        r"attention\.attention_refused",
        "form",
        r"first two dimensions of batch2 .* instead of not refused",
        "the CPU's fused kernel takes fewer values than keys, and reads beside them",
    ),
    Explained(r"layouts\.flops", "form", "^2080 instead of 1056", "PyTorch does not count the CPU's fused attention"),
    Explained(r"interchange\.exchanged", "form", "cannot address this device's memory", "it is the device's alone"),
    Explained(
        r"indexing\.out_of_range",
        "form",
        "^IndexError instead of RuntimeErr",
        "executables say that an index is wrong, not of which operator (docs/driver.md)",
    ),
    Explained(
        r"attention\.attention_refused",
        "form",
        "flash_attention",
        "the CPU's fused kernel has words of its own; PyTorch's products refuse here",
    ),
    Explained(r"indexing\.in_place_refused", "form", "negative dimension -1", "the CPU says that a product overflows"),
    Explained(
        r"settings\.deterministic",
        "fallback",
        "index_put",
        "in the CPU's order, while it is asked for",
    ),
    Explained(
        r"indexing\.overlaps_refused",
        "form",
        "must match the existing size",
        "shapes are looked at before memory is, where both are wrong",
    ),
)


def reason_for(program: str, kind: str, text: str) -> str:
    """Why a finding is none, or ''."""
    return next(
        (
            each.reason
            for each in EXPLAINED
            if each.kind == kind and re.fullmatch(each.programs, program) and re.search(each.text, text)
        ),
        "",
    )
