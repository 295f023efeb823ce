# SPDX-License-Identifier: Apache-2.0
"""``torch_npu.profiler``: ``torch.profiler`` with the extension's names. Traces are PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerAction, schedule, supported_activities, tensorboard_trace_handler

from outboard.profiles.notices import say_once

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity:
    """What to record: the host, the device."""

    CPU = torch.profiler.ProfilerActivity.CPU
    NPU = torch.profiler.ProfilerActivity.PrivateUse1


class profile(torch.profiler.profile):  # noqa: N801 - the extension's name
    """``torch.profiler.profile``. What only Ascend's tools record (``experimental_config``) is not there."""

    def __init__(
        self,
        activities: Iterable[torch.profiler.ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        with_flops: bool = False,
        experimental_config: Any = None,
    ) -> None:
        if experimental_config is not None:
            say_once("torch_npu.profiler.profile(experimental_config=...) has no effect with Outboard")
        super().__init__(
            activities=activities,
            schedule=schedule,
            on_trace_ready=on_trace_ready,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_modules=with_modules,
            with_flops=with_flops,
        )


class _ExperimentalConfig:
    """Accepts the settings of Ascend's tools, which have no effect."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class _AnyLevel:
    """Names of levels and metrics of Ascend's tools, each of which is its own name."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


AiCMetrics = ExportType = ProfilerLevel = _AnyLevel()
