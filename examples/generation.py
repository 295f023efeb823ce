# SPDX-License-Identifier: Apache-2.0
"""Text generation without launch overhead: the decoding step of a Hugging Face model, captured once and replayed.

A model runs thousands of lines of Python for every token. A static cache of keys and values keeps everything in place,
so that ``outboard.graphed`` can capture one step and replay it for all tokens. The rest of ``generate`` runs as always:
sampling, masks for padding, stopping, streaming.

``python -m examples.generation`` generates with and without, from the same weights, and compares tokens and times.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from typing import Any

import torch

import outboard
from examples.measure import seconds_of

ROUNDS = 9  #: of timing


def llama(vocabulary: int = 8192, width: int = 512, hidden: int = 1408, layers: int = 8, heads: int = 8) -> Any:
    """A Llama from transformers with random weights, which never stops by itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=1024,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def main() -> None:
    """Compares generation with and without ``outboard.graphed``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--count", type=int, default=64, help="tokens to generate")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = llama().to(options.device)
    graphed = outboard.graphed(copy.copy(model))  # the same parameters
    prompt = torch.randint(8192, (1, options.prompt), device=options.device)
    settings = {"max_new_tokens": options.count, "do_sample": False, "pad_token_id": 0}
    settings["attention_mask"] = torch.ones_like(prompt)
    ways = {
        "model": lambda: model.generate(prompt, **settings),
        "outboard.graphed(model)": lambda: graphed.generate(prompt, cache_implementation="static", **settings),
    }
    expected, found = (way() for way in ways.values())
    if not torch.equal(found, expected):
        raise SystemExit("the replayed steps found other tokens")
    rounds = [{name: seconds_of(way) for name, way in ways.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in ways}
    print(f"{options.count} tokens behind {options.prompt}: the same from both")
    for name, median in medians.items():
        print(f"{name:24} {median * 1e3:7.1f} ms, {median / medians['model']:.2f}")


if __name__ == "__main__":
    main()
