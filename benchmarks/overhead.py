# SPDX-License-Identifier: Apache-2.0
"""What launching costs beside the kernels: in a decoding step, and in a chain of small kernels.

A decoding step, the model's call and the choice of a token that is waited for, is timed against the same step captured
as a graph and replayed many times in a row: the device's work alone, without Python, dispatch and waiting. The rest of
the step's time is launch overhead. A token of ``transformers.generate``, whose own Python comes on top, is timed beside
it. Besides eager and compiled there is a third way: ``outboard.graphed`` replays the model's call, with a static cache.
The chain is timed until it is submitted and until it is finished.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import outboard
from benchmarks.engine import all_ways
from examples.generation import llama
from examples.measure import seconds_of

PROMPT = 256
SHORT, LONG = 17, 81  #: tokens generated; the difference of their times is free of the prompt
REPLAYS = 32
STEPS = 16  #: for each repeat, each waited for

DECODE, CHAIN = "Llama 8x512 generate", "200 small kernels"
CHAIN_ROUNDS = 5  #: for each repeat of a model
LINKS = 100  #: of the chain, each a product and a pointwise kernel

#: A cache, and what makes it ready for a step behind so many tokens.
Prepared = tuple[Any, Callable[[int], Any]]


def measure_decode(device: torch.device, repeats: int) -> dict[str, dict[str, float]]:
    """For each way on the device, medians: ``step``, the seconds of a decoding step; ``device``, those of the device's
    work for it; ``token``, those of one token of ``generate``; ``overhead`` and ``beside``, the shares of the step's
    and of the token's time that are not the device's, by round.
    """
    torch.manual_seed(0)
    model, prompt = llama(), torch.randint(8192, (1, PROMPT))
    found = {}
    for way in all_ways(device):
        if way.device.type == device.type:
            moved = copy.deepcopy(model).to(device)
            if way.compiled:
                moved.forward = torch.compile(moved.forward)
            found[way.name] = _decode(moved, prompt.to(device), repeats, "dynamic")
            torch._dynamo.reset()
    graphed = outboard.graphed(copy.deepcopy(model).to(device))
    found[f"{device.type} graphed"] = _decode(graphed, prompt.to(device), repeats, "static")
    return found


def _decode(model: Any, prompt: Tensor, repeats: int, cache: str) -> dict[str, float]:
    prepared = _steps(model, prompt, _PREPARED[cache])
    for _ in range(3):
        _generate(model, prompt, LONG, cache)
        prepared()()
    captured = prepared()
    torch.accelerator.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        captured()
    return _rounds(
        repeats,
        lambda count: _generate(model, prompt, count, cache),
        lambda: (prepared() for _ in range(STEPS)),
        graph.replay,
    )


def _rounds(
    repeats: int,
    generate: Callable[[int], object],
    steps: Callable[[], Iterator[Callable[[], object]]],
    replay: Callable[[], object],
) -> dict[str, float]:
    """The medians of all times, and those of the shares by round. ``generate`` generates so many tokens, ``steps``
    makes the steps of a round, each before its clock starts, and ``replay`` submits the device's work of one."""
    times: dict[str, list[float]] = {"step": [], "device": [], "token": []}
    for _ in range(repeats):
        short, long = (seconds_of(lambda count=count: generate(count)) for count in (SHORT, LONG))
        times["token"].append((long - short) / (LONG - SHORT))
        times["step"].append(statistics.median(seconds_of(step) for step in steps()))
        times["device"].append(seconds_of(lambda: [replay() for _ in range(REPLAYS)]) / REPLAYS)
    for share, whole in (("overhead", "step"), ("beside", "token")):
        times[share] = [1 - work / time for work, time in zip(times["device"], times[whole], strict=True)]
    return {name: statistics.median(values) for name, values in times.items()}


def _generate(model: Any, prompt: Tensor, count: int, cache: str) -> Tensor:
    settings = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0, "cache_implementation": cache}
    with torch.no_grad():
        tokens: Tensor = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    return tokens


def _steps(
    model: Any, prompt: Tensor, make_cache: Callable[[Any, int], Prepared]
) -> Callable[[], Callable[[], Tensor]]:
    """Makes decoding steps with a cache of middle length: each is to be called once, as it makes its cache longer."""
    length = PROMPT + (SHORT + LONG) // 2
    cache, prepare = make_cache(model.config, PROMPT + LONG + REPLAYS)
    with torch.no_grad():
        model(torch.randint(8192, (1, length), device=prompt.device), past_key_values=cache, use_cache=True)
    token = prompt[:, :1].clone()
    position = torch.full((1, 1), length, device=prompt.device)

    def prepared() -> Callable[[], Tensor]:
        past = prepare(length)

        @torch.no_grad()
        def step() -> Tensor:
            logits: Tensor = model(token, past_key_values=past, use_cache=True, position_ids=position).logits
            return logits[:, -1].argmax(-1)

        return step

    return prepared


def _dynamic_cache(config: Any, longest: int) -> Prepared:
    """A cache that grows by new tensors, and what makes a copy of it."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)

    def prepare(length: int) -> Any:
        past = copy.copy(cache)
        past.layers = [copy.copy(layer) for layer in cache.layers]
        return past

    return cache, prepare


def _static_cache(config: Any, longest: int) -> Prepared:
    """A cache that stays in place, and what sets its length back."""
    from transformers import StaticCache

    cache = StaticCache(config=config, max_cache_len=longest)

    def prepare(length: int) -> Any:
        for layer in cache.layers:
            layer.cumulative_length.fill_(length)
        return cache

    return cache, prepare


_PREPARED = {"dynamic": _dynamic_cache, "static": _static_cache}


def measure_chain(device: torch.device, repeats: int) -> dict[str, dict[str, float]]:
    """For each way to run a chain of small kernels, the median seconds until it is ``submitted`` and ``finished``."""
    torch.manual_seed(0)
    x, weights = torch.randn(8, 32, device=device), [torch.randn(32, 32, device=device) * 0.1 for _ in range(LINKS)]

    def chain() -> Tensor:
        y = x
        for weight in weights:
            y = torch.tanh(y @ weight) + y
        return y

    ways: dict[str, Callable[[], Tensor]] = {"eager": chain, "compiled": torch.compile(chain)}
    ways["compiled, reduce-overhead"] = torch.compile(chain, mode="reduce-overhead")
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with torch.no_grad():
        expected = chain()
        for _ in range(CHAIN_ROUNDS * repeats):
            for way, call in ways.items():
                torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)  # a rehearsal, too
                times[way].append(_submitted_and_finished(call))
    torch._dynamo.reset()
    return {
        way: {"submitted": statistics.median(submitted), "finished": statistics.median(finished)}
        for way, (submitted, finished) in ((way, zip(*pairs, strict=True)) for way, pairs in times.items())
    }


def _submitted_and_finished(call: Callable[[], object]) -> tuple[float, float]:
    torch.accelerator.synchronize()
    start = time.perf_counter()
    call()
    submitted = time.perf_counter()
    torch.accelerator.synchronize()
    return submitted - start, time.perf_counter() - start
