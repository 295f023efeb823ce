# SPDX-License-Identifier: Apache-2.0
"""What a decoding step costs beside its kernels.

A token that ``transformers.generate`` makes is timed against the same step captured as a graph and replayed many times
in a row: the device's work alone, without Python, dispatch and waiting. The rest of the time is launch overhead.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine import Way, all_ways
from benchmarks.models import llama

PROMPT = 256
SHORT, LONG = 17, 81  #: tokens generated; the difference of their times is free of the prompt
REPLAYS = 32

WORKLOAD = "Llama 8x512 generate"


def measure(device: torch.device, repeats: int) -> dict[str, dict[str, float]]:
    """For each way on the device, the medians of ``token``, the seconds of one token of ``generate``, and ``device``,
    those of the device's work for it; and ``overhead``, the share of the token's time that is not the device's."""
    torch.manual_seed(0)
    model, prompt = llama(), torch.randint(8192, (1, PROMPT))
    found = {}
    for way in all_ways(device):
        if way.device.type == device.type:
            found[way.name] = _measure(way, copy.deepcopy(model).to(device), prompt.to(device), repeats)
            torch._dynamo.reset()
    return found


def _measure(way: Way, model: Any, prompt: Tensor, repeats: int) -> dict[str, float]:
    if way.compiled:
        model.forward = torch.compile(model.forward)
    step = _step(model, prompt)
    for _ in range(2):
        _generate(model, prompt, LONG)
        step()
    torch.accelerator.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        step()
    times: dict[str, list[float]] = {"token": [], "device": []}
    for _ in range(repeats):
        short, long = (_seconds(lambda count=count: _generate(model, prompt, count)) for count in (SHORT, LONG))
        times["token"].append((long - short) / (LONG - SHORT))
        times["device"].append(_seconds(lambda: [graph.replay() for _ in range(REPLAYS)]) / REPLAYS)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return medians | {"overhead": 1 - medians["device"] / medians["token"]}


def _generate(model: Any, prompt: Tensor, count: int) -> Tensor:
    with torch.no_grad():
        tokens: Tensor = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
    return tokens


def _step(model: Any, prompt: Tensor) -> Callable[[], Tensor]:
    """One decoding step with a cache of middle length, which can be repeated."""
    from transformers import DynamicCache

    length = PROMPT + (SHORT + LONG) // 2
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.randint(8192, (1, length), device=prompt.device), past_key_values=cache, use_cache=True)
    token = prompt[:, :1].clone()
    position = torch.full((1, 1), length, device=prompt.device)

    @torch.no_grad()
    def step() -> Tensor:
        past = copy.copy(cache)
        past.layers = [copy.copy(layer) for layer in cache.layers]
        logits: Tensor = model(token, past_key_values=past, use_cache=True, position_ids=position).logits
        return logits[:, -1].argmax(-1)

    return step


def _seconds(function: Callable[[], object]) -> float:
    torch.accelerator.synchronize()
    start = time.perf_counter()
    function()
    torch.accelerator.synchronize()
    return time.perf_counter() - start
