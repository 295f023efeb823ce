# SPDX-License-Identifier: Apache-2.0
"""The face of Rebellions' NPUs, as ``torch-rbln`` shows it: ``torch.rbln``, AMP, its environment variables.

``import torch_rbln`` is a package of its own, ``outboard-rbln`` (``packages/rbln``).
"""

from __future__ import annotations

import torch

from outboard import _C
from outboard.profiles.profile import Profile
from outboard.profiles.rbln import (
    compiling,
    contexts,
    explaining,
    fallbacks,
    logs,
    mapping,
    memory,
    programs,
    variables,
)

#: While this variable is 1, tensors take device memory when they are made. Asked at each allocation.
_EAGER_MALLOC = "TORCH_RBLN_EAGER_MALLOC"


def _activate() -> None:
    logs.install()
    variables.check()
    fallbacks.install()
    compiling.install()
    _C.set_contents_wait(True)
    _C.set_eager_variable(_EAGER_MALLOC)


PROFILE = Profile(
    name="rbln",
    amp_dtypes=(torch.float16, torch.bfloat16),
    distributed_backend="rbln-ccl",
    extra_api={
        "device": contexts.device,
        "device_of": contexts.device_of,
        "physical_device_count": mapping.physical_device_count,
        "device_summary": mapping.device_summary,
        "explain": explaining.explain,
        "explain_steady": explaining.explain_steady,
        "profile": explaining.explain,
        "RBLNDiff": explaining.RBLNDiff,
        "RBLNExplain": explaining.RBLNExplain,
        "RBLNProfile": explaining.RBLNExplain,
        "capture_programs": programs.capture_programs,
        "CompiledProgram": programs.CompiledProgram,
        "InputSpec": programs.InputSpec,
        "OutputSpec": programs.OutputSpec,
        "PhysicalPlacement": programs.PhysicalPlacement,
        "ShardPlacement": programs.ShardPlacement,
        "bind_device_memory": memory.bind_device_memory,
        "huge_host_empty": memory.huge_host_empty,
        "is_dummy_device": memory.is_dummy_device,
        "mem_get_info_per_chiplet": memory.mem_get_info_per_chiplet,
        "memory_stats_per_chiplet": memory.memory_stats_per_chiplet,
        "offload": memory.offload,
        "release_offload_temp_storage": memory.release_offload_temp_storage,
        "set_device_layout_like": memory.set_device_layout_like,
    },
    choose_devices=mapping.choose,
    on_activation=_activate,
)
