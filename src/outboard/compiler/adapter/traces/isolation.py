# SPDX-License-Identifier: Apache-2.0
"""Runs Dynamo and Inductor in isolation (see ``compiler.isolation``), for all graphs and devices."""

from __future__ import annotations

from torch._dynamo import trace_rules

from outboard import patches

from ...isolation import isolated


def trace_isolated() -> None:
    """Does so for Dynamo, and for all that it calls: forward graphs are compiled inside."""
    patches.apply("frames are compiled in isolation", {"torch._dynamo.convert_frame._compile": isolated})


def leave_devices_alone() -> None:
    """Has Dynamo call the device's module, which ``torch.manual_seed`` calls, as it is: so it calls PyTorch's."""
    trace_rules.add("outboard.device")


def compile_isolated() -> None:
    """Does so for Inductor: backward graphs are compiled when they are first run, outside of Dynamo."""
    patches.apply("graphs are compiled in isolation", {"torch._inductor.compile_fx._compile_fx_inner": isolated})
