# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of transformers, with random weights: forward, backward and generation, as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
MORE: dict[str, dict[str, int]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32},
}


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


@pytest.mark.parametrize("kind", sorted(MORE))
def test_experts(device: str, kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `demo` installs it")
    config = getattr(transformers, f"{kind}Config")(**SIZES, **MORE[kind], pad_token_id=0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    words = torch.randint(1, 64, (2, 9))
    results = []
    for where in ("cpu", device):
        model.to(where).zero_grad()
        out = model.train()(words.to(where), labels=words.to(where), output_router_logits=True)
        out.loss.backward()
        options = {"attention_mask": torch.ones_like(words).to(where), "max_new_tokens": 3, "do_sample": False}
        said = model.eval().generate(words.to(where), **options)
        grads = [parameter.grad.cpu().clone() for parameter in model.parameters()]
        results.append([out.loss.detach().cpu(), out.logits.detach().cpu(), said.cpu(), *grads])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
