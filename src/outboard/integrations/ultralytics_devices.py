# SPDX-License-Identifier: Apache-2.0
"""Ultralytics (8.4): the device by its name for training, validation and prediction, and where no device is asked for.

Its models ask ``select_device`` what a name means, which knows CUDA, MPS and two more; its trainer makes the scaler of
mixed precision for CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import patching

_SELECT = "ultralytics.utils.torch_utils.select_device"


def install_selection(module: Any, name: str) -> None:
    """Has ``select_device`` know the device called ``name``."""
    patching.replace("ultralytics", _SELECT, functools.partial(_selecting, name=name))


def install_scaler(module: Any, name: str) -> None:
    """Has the trainer scale losses on the device called ``name`` too."""
    trainer: Any = getattr(module, "BaseTrainer", None)
    if not hasattr(trainer, "_setup_train"):
        return patching.missing("ultralytics", "BaseTrainer._setup_train")
    trainer._setup_train = _scaling(trainer._setup_train, name)
    return None


def _selecting(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def select_device(device: Any = "", *args: Any, **kwargs: Any) -> Any:
        wanted = _device(device, name)
        if wanted is None:
            return original(device, *args, **kwargs)
        torch.get_device_module(name).set_device(wanted)
        return wanted

    return select_device


def _device(asked: Any, name: str) -> torch.device | None:
    """The device that is asked for, if it is one called ``name``: by its name, or by none where Ultralytics would know
    only the CPU.

    Raises:
        ValueError: for one that there is not, or more than one.
    """
    module: Any = torch.get_device_module(name)
    text = str(asked).lower().strip("()[] ") if asked is not None else ""
    if text == "" and module.is_available() and not torch.cuda.is_available():
        return torch.device(name, module.current_device())
    if text.partition(":")[0] != name:
        return None
    index = text.partition(":")[2] or str(module.current_device())
    if not index.isdigit() or int(index) >= module.device_count():
        raise ValueError(f"Invalid 'device={asked}' requested: one of {module.device_count()}, as '{name}:0'")
    return torch.device(name, int(index))


def _scaling(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def _setup_train(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.device.type == name:
            wanted = bool(self.amp) and getattr(self.args, "amp", None) != "bf16"
            self.scaler = torch.amp.GradScaler(name, enabled=wanted)
        return result

    return _setup_train
