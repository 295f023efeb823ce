# SPDX-License-Identifier: Apache-2.0
"""What files of plans have in common: a hash of all that decides what plans are, and a seal against damage."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import torch


def compiler_fingerprint() -> bytes:
    """A hash of everything but the signature that a plan depends on."""
    return fingerprint_under(torch.__version__)


def fingerprint_under(version: str) -> bytes:
    """The same under a version of PyTorch."""
    # The environment is asked each time: a program may change it, and its plans must not be taken for others.
    library = os.environ.get("OUTBOARD_LIBRARY", "")
    return hashlib.sha256(_sources(Path(__file__).parents[1]) + f"{version}\0{library}".encode()).digest()


#: Files of the compiler on which no plan depends: what they show, count, delete, or when they are imported.
NO_PART_OF_PLANS = frozenset({"progress.py", "statistics.py", "on_import.py", "plans/eviction.py"})


@functools.cache
def _sources(package: Path) -> bytes:
    """A hash of the sources in the compiler's folder that decide what plans are."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name not in NO_PART_OF_PLANS:
            digest.update(name.encode())
            digest.update(path.read_bytes())
    return digest.digest()


def sealed(magic: bytes, body: bytes) -> bytes:
    """A file's content: what kind of file it is, a checksum, and the body."""
    return magic + hashlib.sha256(body).digest() + body


def unsealed(magic: bytes, content: bytes) -> bytes | None:
    """The body of what ``sealed`` made; None if it is another kind of file, or damaged."""
    body = content[len(magic) + hashlib.sha256().digest_size :]
    return body if content == sealed(magic, body) else None
