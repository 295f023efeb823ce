# SPDX-License-Identifier: Apache-2.0
"""``transformers.generate`` with replayed decoding steps finds the tokens that it finds without."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import outboard
from examples.generation import llama

PROMPT, COUNT = 12, 9


@pytest.fixture(scope="module")
def model(device: str) -> Any:
    torch.manual_seed(0)
    return llama(vocabulary=97, width=64, hidden=160, layers=2, heads=4).to(device)


@pytest.fixture
def graphed(model: Any) -> Any:
    return outboard.graphed(copy.copy(model))


def prompts(rows: int, device: str) -> Tensor:
    return torch.randint(97, (rows, PROMPT), device=device)


def generated(model: Any, prompt: Tensor, **settings: Any) -> Tensor:
    settings = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0, **settings}
    settings.setdefault("attention_mask", torch.ones_like(prompt))
    torch.manual_seed(3)
    found: Tensor = model.generate(prompt, **settings)
    return found


def replays(device_module: ModuleType) -> int:
    return int(device_module.compile_stats().get("replays", 0))


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.full("three rows have one, too")), 3])
def test_the_same_tokens(model: Any, graphed: Any, device: str, device_module: ModuleType, rows: int) -> None:
    for _ in range(3):
        prompt, before = prompts(rows, device), replays(device_module)
        found = generated(graphed, prompt, cache_implementation="static")
        assert torch.equal(found, generated(model, prompt))
        # The prompt's call gives the first token, the next one runs, the others are replayed.
        assert replays(device_module) == before + COUNT - 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_tokens(model: Any, graphed: Any, device: str, count: int) -> None:
    prompt = prompts(1, device)
    found = generated(graphed, prompt, cache_implementation="static", max_new_tokens=count)
    assert torch.equal(found, generated(model, prompt, max_new_tokens=count))


def test_sampling_draws_the_same(model: Any, graphed: Any, device: str) -> None:
    prompt, settings = prompts(2, device), {"do_sample": True, "top_k": 20, "cache_implementation": "static"}
    assert torch.equal(generated(graphed, prompt, **settings), generated(model, prompt, **settings))


def test_padded_prompts(model: Any, graphed: Any, device: str) -> None:
    prompt = prompts(2, device)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    found = generated(graphed, prompt, attention_mask=mask, cache_implementation="static")
    assert torch.equal(found, generated(model, prompt, attention_mask=mask))


def test_it_stops_behind_the_token_asked_for(model: Any, graphed: Any, device: str) -> None:
    prompt = prompts(1, device)
    stop = int(generated(model, prompt)[0, PROMPT + 4])
    found = generated(graphed, prompt, eos_token_id=stop, cache_implementation="static")
    assert torch.equal(found, generated(model, prompt, eos_token_id=stop))


def test_what_each_step_returns_stays(model: Any, graphed: Any, device: str) -> None:
    """Hidden states of all steps are held until the end: no replay may write over them."""
    settings = {"return_dict_in_generate": True, "output_hidden_states": True, "output_logits": True}
    prompt = prompts(1, device)
    expected: Any = generated(model, prompt, cache_implementation="static", **settings)
    found: Any = generated(graphed, prompt, cache_implementation="static", **settings)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states)


def test_caches_that_are_not_static_run_as_they_did(
    model: Any, graphed: Any, device: str, device_module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    prompt, before = prompts(1, device), replays(device_module)
    assert torch.equal(generated(graphed, prompt), generated(model, prompt))
    assert replays(device_module) == before
    assert "is not replayed: it changes 'keys' of a DynamicLayer" in caplog.text


def test_beams(model: Any, graphed: Any, device: str) -> None:
    prompt = prompts(2, device)
    found = generated(graphed, prompt, num_beams=3, cache_implementation="static")
    assert torch.equal(found, generated(model, prompt, num_beams=3))


def test_sliding_windows(device: str) -> None:
    """The cache of a window counts in Python."""
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6}
    torch.manual_seed(1)
    model = MistralForCausalLM(MistralConfig(**sizes, **heads, eos_token_id=None)).eval().to(device)
    prompt = prompts(1, device)
    expected = generated(model, prompt, cache_implementation="static")
    assert torch.equal(generated(outboard.graphed(model), prompt, cache_implementation="static"), expected)


def test_new_weights_in_place_are_seen(device: str) -> None:
    torch.manual_seed(2)
    model = llama(vocabulary=97, width=64, hidden=160, layers=2, heads=4).to(device)
    graphed, prompt = outboard.graphed(copy.copy(model)), prompts(1, device)
    before = generated(graphed, prompt, cache_implementation="static")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    after = generated(graphed, prompt, cache_implementation="static")
    assert not torch.equal(after, before)
    assert torch.equal(after, generated(model, prompt))


def test_the_memory_of_a_cache_that_is_gone_is_free(graphed: Any, device: str, device_module: ModuleType) -> None:
    prompt = prompts(1, device)
    sizes = []
    for _ in range(4):
        generated(graphed, prompt, cache_implementation="static", max_length=200, max_new_tokens=None)
        sizes.append(device_module.memory_allocated())
    assert sizes[3] <= sizes[1]
