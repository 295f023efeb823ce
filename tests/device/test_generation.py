# SPDX-License-Identifier: Apache-2.0
"""Text generation with a captured decoding step finds the tokens that ``transformers.generate`` finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.generation import WARM_UP, CapturedDecoder, llama

PROMPT, COUNT = 12, 9


@pytest.fixture(scope="module")
def decoder(device: str) -> CapturedDecoder:
    torch.manual_seed(0)
    return CapturedDecoder(llama(vocabulary=97, width=64, hidden=160, layers=2, heads=4).to(device), PROMPT + COUNT)


def prompts(rows: int, device: str) -> Tensor:
    return torch.randint(97, (rows, PROMPT), device=device)


def generated(decoder: CapturedDecoder, prompt: Tensor, count: int = COUNT) -> Tensor:
    mask = torch.ones_like(prompt)
    found: Tensor = decoder.model.generate(
        prompt, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return found


def test_one_recording_serves_all_prompts(decoder: CapturedDecoder, device: str) -> None:
    graphs = []
    for _ in range(3):
        prompt = prompts(1, device)
        assert torch.equal(decoder.generate(prompt, COUNT), generated(decoder, prompt))
        graphs.append(decoder._graph)
    assert graphs[0] is not None and graphs[0] is graphs[1] is graphs[2]


def test_several_prompts_at_once(device: str) -> None:
    torch.manual_seed(1)
    model = llama(vocabulary=97, width=64, hidden=160, layers=2, heads=4).to(device)
    decoder, prompt = CapturedDecoder(model, PROMPT + COUNT), prompts(3, device)
    assert torch.equal(decoder.generate(prompt, COUNT), generated(decoder, prompt))


def test_new_weights_in_place_are_seen(device: str) -> None:
    torch.manual_seed(2)
    model = llama(vocabulary=97, width=64, hidden=160, layers=2, heads=4).to(device)
    decoder, prompt = CapturedDecoder(model, PROMPT + COUNT), prompts(1, device)
    before = decoder.generate(prompt, COUNT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    after = decoder.generate(prompt, COUNT)
    assert not torch.equal(after, before)
    assert torch.equal(after, generated(decoder, prompt))


@pytest.mark.parametrize("count", [1, WARM_UP, WARM_UP + 1, WARM_UP + 2])
def test_few_tokens(decoder: CapturedDecoder, device: str, count: int) -> None:
    prompt = prompts(1, device)
    assert torch.equal(decoder.generate(prompt, count), generated(decoder, prompt, count))


def test_it_stops_behind_the_token_asked_for(decoder: CapturedDecoder, device: str) -> None:
    prompt = prompts(1, device)
    whole = decoder.generate(prompt, COUNT)
    stop = int(whole[0, PROMPT + 4])
    first = whole[0, PROMPT:].tolist().index(stop)
    assert torch.equal(decoder.generate(prompt, COUNT, stop=stop), whole[:, : PROMPT + first + 1])


def test_more_tokens_than_the_cache_holds_are_refused(decoder: CapturedDecoder, device: str) -> None:
    with pytest.raises(ValueError, match="more than the 21"):
        decoder.generate(prompts(1, device), COUNT + 1)
    prompt = prompts(1, device)
    assert torch.equal(decoder.generate(prompt, COUNT), generated(decoder, prompt))
