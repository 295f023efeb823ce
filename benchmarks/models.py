# SPDX-License-Identifier: Apache-2.0
"""Models as people use them: inference, training steps, and text generation through Hugging Face transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine import Answer, Job, Way, Workload
from benchmarks.probes import Traffic
from benchmarks.roofline import FLOAT, Phase
from examples.generation import llama
from examples.measure import synchronize
from examples.models import GPT2, Bert, GPT2Config, resnet50
from examples.variant import MakeOptimizer, Variant, sgd

#: A model, its inputs and the right labels.
Example = tuple[nn.Module, Tensor, Tensor]


def resnet(batch: int) -> Example:
    """ResNet-50 on images of 224 x 224."""
    return resnet50(), torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))


def bert(batch: int, length: int) -> Example:
    """BERT-base, predicting every token."""
    model = Bert()
    shape = batch, length
    return model, torch.randint(model.config.vocabulary, shape), torch.randint(model.config.vocabulary, shape)


def gpt2_small(batch: int, length: int) -> Example:
    """GPT-2 of 124 M parameters, predicting every next token."""
    config = GPT2Config(vocabulary=50257, positions=1024, width=768, layers=12, heads=12)
    shape = batch, length
    return GPT2(config), torch.randint(config.vocabulary, shape), torch.randint(config.vocabulary, shape)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW as PyTorch configures it by default on the parameters' device."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def parameter_bytes(model: nn.Module) -> int:
    """Size of all parameters in float32."""
    return FLOAT * sum(parameter.numel() for parameter in model.parameters())


class Forward(Workload):
    """Inference: logits without gradients."""

    def __init__(self, name: str, example: Example) -> None:
        self.name = name
        self.example = example

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        variant = Variant(*self.example, way.device, way.compiled, dtype)
        return Job(lambda: {"logits": [variant.forward()]}, variant.forward)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(Traffic(reads=parameter_bytes(self.example[0])), flops)]


class Training(Workload):
    """Zeroing of gradients, forward, loss, backward, optimizer.

    ``optimizer_state`` is how much the optimizer changes, in the parameters' size.
    """

    def __init__(self, name: str, example: Example, make_optimizer: MakeOptimizer, optimizer_state: int) -> None:
        self.name = name
        self.example = example
        self.make_optimizer = make_optimizer
        self.optimizer_state = optimizer_state

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        variant = Variant(*self.example, way.device, way.compiled, dtype, self.make_optimizer)

        def answer() -> Answer:
            losses = [variant.step()]
            found = (parameter.grad for parameter in variant.model.parameters())
            gradients = [gradient.clone() for gradient in found if gradient is not None]
            losses.append(variant.step())  # tells whether the first step changed the weights as it should
            return {"losses": losses, "gradients": gradients}

        return Job(answer, variant.step)

    def phases(self, flops: int) -> list[Phase]:
        steps_in_answer = 2
        return [
            Phase(flops=flops / steps_in_answer),
            Phase(optimizer_traffic(self.optimizer_state, parameter_bytes(self.example[0]))),
        ]


#: What an optimizer changes, in the parameters' size: SGD the parameter itself, Adam also two moments.
SGD_STATE, ADAM_STATE = 1, 3


def optimizer_traffic(state: int, size: float) -> Traffic:
    """What a step reads and writes: ``state`` times ``size`` bytes are changed in place, and gradients are read."""
    return Traffic(reads=(state + 1) * size, writes=state * size, in_place=True)


class Prefill(Workload):
    """Logits of a whole prompt, which also fills the key-value cache."""

    length = 256

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = llama()
        self.prompt = torch.randint(8192, (1, self.length))

    def make(self, way: Way, dtype: torch.dtype) -> tuple[Any, Tensor]:
        """Model and prompt on a way."""
        model = copy.deepcopy(self.model).to(way.device, dtype)
        if way.compiled:
            # generate() calls the module, and the module its forward.
            model.forward = torch.compile(model.forward)
        return model, self.prompt.to(way.device)

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        model, prompt = self.make(way, dtype)

        def run() -> Tensor:
            with torch.no_grad():
                logits: Tensor = model(prompt, use_cache=True).logits
            synchronize(way.device)
            return logits

        return Job(lambda: {"logits": [run()]}, run)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(Traffic(reads=parameter_bytes(self.model)), flops)]


class Generate(Prefill):
    """Greedy generation of 64 tokens after the prompt, with a key-value cache, by ``transformers.generate``."""

    count = 64

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        model, prompt = self.make(way, dtype)

        def run() -> Tensor:
            with torch.no_grad():
                tokens: Tensor = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=self.count,
                    do_sample=False,
                    pad_token_id=0,
                )
            synchronize(way.device)
            return tokens

        return Job(lambda: {"choices": [self.chosen(run())]}, run)

    def chosen(self, tokens: Tensor) -> Tensor:
        """How good each generated token is after those before it, judged in float64: (count,), 1 where it is the best.

        Two float32 implementations may choose differently between tokens whose logits are equal up to rounding, and go
        different ways from there. So tokens are not compared with tokens: from 1 is taken what a token's logit is short
        of the best one's, relative to the largest logit of all.
        """
        if tokens.shape[1] != self.length + self.count:
            raise RuntimeError(f"generated {tokens.shape[1] - self.length} tokens instead of {self.count}")
        judge = copy.deepcopy(self.model).double()
        tokens = tokens.cpu()
        with torch.no_grad():
            logits = judge(tokens).logits[0, self.length - 1 : -1]
        picked = logits.gather(1, tokens[0, self.length :, None])[:, 0]
        quality: Tensor = 1 - (logits.max(-1).values - picked) / logits.abs().max()
        return quality

    def phases(self, flops: int) -> list[Phase]:
        # The answer's count includes the judge's, so the prompt is counted here: 2 operations per weight and token.
        embedding = FLOAT * 8192 * 512
        prompt = Phase(flops=2 * self.length * (parameter_bytes(self.model) - 2 * embedding) / FLOAT)
        cache = 2 * FLOAT * 8 * 512 * (self.length + self.count / 2)
        step = Phase(Traffic(reads=parameter_bytes(self.model) - embedding + cache))
        return [prompt, *[step] * (self.count - 1)]


_MAKERS: dict[str, Callable[[str], Workload]] = {
    "ResNet-50 forward, 4": lambda name: Forward(name, resnet(4)),
    "ResNet-50 SGD step, 2": lambda name: Training(name, resnet(2), sgd, SGD_STATE),
    "BERT-base forward, 4x128": lambda name: Forward(name, bert(4, 128)),
    "BERT-base AdamW step, 4x128": lambda name: Training(name, bert(4, 128), adamw, ADAM_STATE),
    "Llama 8x512 prefill, 256": Prefill,
    "Llama 8x512 generate, 64": Generate,
    "GPT-2-small AdamW step, 2x128": lambda name: Training(name, gpt2_small(2, 128), adamw, ADAM_STATE),
}

#: Makes each workload when its turn has come: together they would not fit into small machines.
WORKLOADS: dict[str, Callable[[], Workload]] = {name: partial(make, name) for name, make in _MAKERS.items()}
