# SPDX-License-Identifier: Apache-2.0
"""Leaves Dynamo and Inductor undisturbed (see ``compiler.undisturbed``), for all graphs and devices, and spares them
waiting."""

from __future__ import annotations

import threading

from outboard import patches

from ...undisturbed import undisturbed
from .. import releases


def trace_undisturbed() -> None:
    """Does so for Dynamo, and for all that it calls: forward graphs are compiled inside."""
    patches.apply("frames are compiled undisturbed", {"torch._dynamo.convert_frame._compile": undisturbed})


def compile_undisturbed() -> None:
    """Does so for Inductor: backward graphs are compiled when they are first run, outside of Dynamo."""
    patches.apply("graphs are compiled undisturbed", {"torch._inductor.compile_fx._compile_fx_inner": undisturbed})


def hash_sources_ahead() -> None:
    """Has a thread read and hash PyTorch's sources, a part of the keys of Inductor's cache, while Dynamo traces. A
    forked process, which has no such thread, hashes them itself."""
    if not threading.main_thread().is_alive():
        return  # Python is about to end, and starts no more work in threads
    releases.prefetch_hash_of_sources()
