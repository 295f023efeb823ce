# SPDX-License-Identifier: Apache-2.0
"""All that one run of a program shows: results, exception, warnings, what it prints, what state it leaves."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tools import snapshot
from tools.messages import plain
from tools.programs.registry import Program, Wrap

#: What PyTorch's state is named that a program on another device moves in another way, or a compiler sets for itself.
_MOVES = re.compile(r"^generator (?!cpu|random|numpy)|^torch\._(dynamo|inductor|functorch)|^environment|^logger ")
#: Where the part of an exception's text ends that says what is wrong.
_ENDS = re.compile(
    r" Set TORCHDYNAMO_VERBOSE| from user code|For more details about this graph break| \(Could this error message"
    r"| \(found when the device was waited for| This could be because the operator doesn't exist"
)


@dataclass
class Seen:
    """What a run showed. ``changed`` names the state that it left otherwise than it was."""

    results: Any = None
    error: str = ""
    warned: list[str] = field(default_factory=list)
    printed: str = ""
    changed: list[str] = field(default_factory=list)


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname}: {record.getMessage()}")


def observe(each: Program, device: str, wrap: Wrap) -> Seen:
    """Runs a program from the same seeds, and waits for the device. ``device`` is "cpu" or the accelerator's name."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_warn_always(True)
    accelerator = _accelerator()
    seen, output, records = Seen(), io.StringIO(), _Records()
    before = snapshot.snapshot()
    with _listening(output, records) as caught:
        try:
            seen.results = shown(each.run(device, wrap), accelerator)
            torch.accelerator.synchronize()
        except Exception as error:  # noqa: BLE001 - compared
            seen.error = refusal_text(error, accelerator)
    seen.changed = sorted(name for name in snapshot.differences(before, snapshot.snapshot()) if not _MOVES.match(name))
    texts = [f"{one.category.__name__}: {plain(str(one.message), accelerator)}" for one in caught] + [
        plain(text, accelerator) for text in records.texts
    ]
    seen.warned = [text[:200] for text in texts if "runs on the CPU" not in text]
    seen.printed = printed(output.getvalue(), accelerator)
    return seen


@contextlib.contextmanager
def _listening(output: io.StringIO, records: _Records) -> Iterator[list[warnings.WarningMessage]]:
    loggers = [logging.getLogger(name) for name in ("", "torch", "torch._dynamo")]
    for logger in loggers:
        logger.addHandler(records)
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(output):
            warnings.simplefilter("always")
            yield caught
    finally:
        for logger in loggers:
            logger.removeHandler(records)


def _accelerator() -> str:
    found = torch.accelerator.current_accelerator()
    if found is None:
        raise RuntimeError("there is no device to judge; run `outboard doctor`")
    return found.type


def refusal_text(error: BaseException, accelerator: str | None = None) -> str:
    """An exception as a program's user reads it, without the device's name."""
    text = _plain(str(error), accelerator or _accelerator())
    text = re.sub(r"\bcpu(Sparse)?(\w+)Type\b", r"torch.\2Tensor", text)  # as PyTorch calls types of other devices
    text = re.split(_ENDS, text)[0]
    text = re.sub(r"\b(Sparse(?:Csr)?|Nested\w*)?(cpu|CPU)(?=' backend)", r"\1CPU", text)
    return f"{type(error).__name__}: {text}"[:400]


def printed(text: str, accelerator: str) -> str:
    """What was printed, without the device's name and where lines end, which depends on it."""
    return re.sub(r"0x[0-9a-f]+", "0x...", _plain(text, accelerator))


def _plain(text: str, accelerator: str) -> str:
    """A text without the device's name: in tensors and parameters as they are printed, of PyTorch's modules."""
    text = re.sub(rf",\s*device='{accelerator}(:\d)?'| \({accelerator}:\d\)", "", text)
    return plain(text, accelerator).replace("torch.cpu.", "torch.").replace(f"Sparse{accelerator}", "SparseCPU")


def shown(results: Any, accelerator: str) -> Any:
    """Results as what :mod:`tools.fuzz.compare` knows: dense tensors, and of others their parts; texts and devices
    without the device's name."""
    return pytree.tree_map(lambda leaf: _shown(leaf, accelerator), results)


def _shown(leaf: Any, accelerator: str) -> Any:
    if isinstance(leaf, torch.device):
        return plain(str(leaf), accelerator)
    if isinstance(leaf, str):
        return printed(leaf, accelerator)
    if isinstance(leaf, Tensor):
        return _parts(leaf)
    return leaf


def _parts(tensor: Tensor) -> Any:
    layout = str(tensor.layout)
    if tensor.layout == torch.sparse_coo:
        return (layout, tensor.shape, tensor.is_coalesced(), tensor._indices(), tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (layout, tensor.shape, tensor.crow_indices(), tensor.col_indices(), tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (layout, tensor.shape, tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    if tensor.is_nested:
        return (layout, [*tensor.unbind()])
    if tensor.is_quantized:
        return (str(tensor.qscheme()), str(tensor.dtype), tensor.int_repr())
    if tensor.device.type == "meta":
        return ("meta", tensor.dtype, tensor.shape, tensor.stride())
    return tensor
