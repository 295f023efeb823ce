# SPDX-License-Identifier: Apache-2.0
"""The face of Ascend's NPUs, as ``torch_npu`` and the PyTorch Backend Project show it: ``torch.npu``, ``Tensor.npu()``.

``import torch_npu`` is a package of its own, ``outboard-npu`` (``packages/npu``).
"""

from __future__ import annotations

import torch

from outboard.profiles.npu import amp, api, environment, graphs, switches
from outboard.profiles.npu.ranges import mstx
from outboard.profiles.profile import Profile

PROFILE = Profile(
    name="npu",
    amp_dtypes=(torch.float16, torch.bfloat16),
    distributed_backend="hccl",
    extra_api={
        **{name: getattr(api, name) for name in api.__all__},
        **{name: getattr(graphs, name) for name in graphs.__all__},
        **{name: getattr(switches, name) for name in switches.__all__},
        "mstx": mstx,
    },
    before_devices=environment.read,
    on_activation=amp.install,
)
