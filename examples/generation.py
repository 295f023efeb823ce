# SPDX-License-Identifier: Apache-2.0
"""Text generation without launch overhead: the decoding step of a Hugging Face model, captured once and replayed.

``transformers.generate`` runs some hundred lines of Python for every token, and the model's own Python on top. A static
key-value cache keeps everything in place, so that one recording of a step serves all tokens: what is left per token is
one replay and the wait for the token.

``python -m examples.generation`` generates with both from the same weights, and compares tokens and times.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from torch import Tensor

from examples.measure import seconds_of

#: Steps that run operator by operator before one is recorded: what has to be compiled is compiled then.
WARM_UP = 2
ROUNDS = 9  #: of timing


class CapturedDecoder:
    """Greedy decoding with a causal language model of transformers that works with its ``StaticCache``.

    The first call of :meth:`generate` captures the step (``torch.accelerator.Graph``), later ones replay it. The model
    must not be moved, nor its parameters replaced, as long as the decoder is used; new values in place are seen.

    Args:
        model: the model, on an accelerator, in evaluation mode.
        length: most tokens of a prompt and what follows it.
    """

    def __init__(self, model: Any, length: int) -> None:
        from transformers import StaticCache

        self.model = model
        self.length = length
        self._cache = StaticCache(config=model.config, max_cache_len=length)
        self._graph: torch.accelerator.Graph | None = None
        self._token: Tensor = torch.empty(0)

    @torch.no_grad()
    def start(self, prompt: Tensor) -> Tensor:
        """Reads a prompt (N, L) of token numbers into the cache, in place of what was there. Returns the token that
        follows, (N, 1), which the next step continues from."""
        self._cache.reset()
        token = self.model(prompt, past_key_values=self._cache, use_cache=True).logits[:, -1:].argmax(-1)
        if self._token.shape != token.shape:
            self._token, self._graph = token.clone(), None
        else:
            self._token.copy_(token)
        return self._token

    @torch.no_grad()
    def _step(self) -> None:
        logits = self.model(self._token, past_key_values=self._cache, use_cache=True).logits
        self._token.copy_(logits[:, -1:].argmax(-1))

    def capture(self) -> None:
        """Records the step, if that has not been done for this number of prompts. Nothing is decoded."""
        if self._graph is None:
            torch.accelerator.synchronize()
            self._graph = torch.accelerator.Graph()
            with self._graph:
                self._step()

    def replay(self) -> Tensor:
        """Decodes the next token, (N, 1). The same tensor each time: copy what is to be kept.

        Raises RuntimeError before ``capture``."""
        if self._graph is None:
            raise RuntimeError("no decoding step was captured yet: call capture() first")
        self._graph.replay()
        return self._token

    def generate(self, prompt: Tensor, count: int, stop: int | None = None) -> Tensor:
        """The prompt (N, L) and up to ``count`` tokens behind it, (N, L + count); fewer if all rows of a step are the
        token ``stop``. Raises ValueError if that is more than the cache holds."""
        if prompt.shape[1] + count > self.length:
            raise ValueError(
                f"{prompt.shape[1]} + {count} tokens are more than the {self.length} of this decoder's cache"
            )
        tokens = [self.start(prompt).cpu()]
        while len(tokens) < count and not (stop is not None and bool((tokens[-1] == stop).all())):
            if self._graph is None and len(tokens) <= WARM_UP:
                self._step()
            else:
                self.capture()
                self.replay()
            tokens.append(self._token.cpu())
        return torch.cat([prompt.cpu(), *tokens[:count]], dim=1).to(prompt.device)


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
    """Compares the decoder with ``model.generate``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--count", type=int, default=64, help="tokens to generate")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = llama().to(options.device)
    prompt = torch.randint(8192, (1, options.prompt), device=options.device)
    decoder = CapturedDecoder(model, options.prompt + options.count)
    settings = {"max_new_tokens": options.count, "do_sample": False, "pad_token_id": 0}
    ways = {
        "model.generate": lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings),
        "CapturedDecoder": lambda: decoder.generate(prompt, options.count),
    }
    expected, found = (way() for way in ways.values())
    if not torch.equal(found, expected):
        raise SystemExit("the decoder found other tokens than model.generate")
    rounds = [{name: seconds_of(way) for name, way in ways.items()} for _ in range(ROUNDS)]
    ordinary, captured = (statistics.median(times[name] for times in rounds) for name in ways)
    print(f"{options.count} tokens behind {options.prompt}: the same from both")
    print(f"model.generate   {ordinary * 1e3:7.1f} ms")
    print(f"CapturedDecoder  {captured * 1e3:7.1f} ms, {captured / ordinary:.2f} of it")


if __name__ == "__main__":
    main()
