# SPDX-License-Identifier: Apache-2.0
"""Models on hardware without a kernel language: the simulator's device, whose driver loads what a compiler of graphs
(``outboard.compilers.sim``) makes and nothing else.

``python -m examples.graph_tier`` runs ResNet-50, BERT and a Llama of transformers on it, inference and a step of
training, eager and compiled, and inference as a file, without Python: how many calls the device carried out, how far
results are from the CPU's, and how many graphs a first and a second process compiled. It fails if fewer than 97 % of
calls ran on the device, if results differ, or if the second process compiled anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outboard
from outboard import drivers

LEAST_SHARE = 0.97
#: Of the largest value, or of the norm of all gradients.
MOST_ERROR = 1e-4
TOKENS = 6  #: to generate
VOCABULARY = 101


@dataclass(frozen=True)
class Outcome:
    """What a job did: its calls, how many of them the CPU carried out, and its error."""

    job: str
    calls: int
    on_cpu: int
    error: float
    compiled: int

    @property
    def share(self) -> float:
        """Of calls that the device carried out."""
        return 1 - self.on_cpu / self.calls

    def passes(self, warm: bool) -> bool:
        """Whether the job went as it should; ``warm``: with what an earlier process left on disk."""
        return self.share >= LEAST_SHARE and self.error <= MOST_ERROR and not (warm and self.compiled)


def resnet() -> tuple[nn.Module, Tensor, Tensor]:
    """ResNet-50, small images, and their labels. In float64, as statistics of a few small images amplify rounding."""
    from examples.models import resnet50

    return resnet50().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.randint(1000, (2,))


def bert() -> tuple[nn.Module, Tensor, Tensor]:
    """A BERT of two narrow layers, its tokens and what they are."""
    from examples.models import Bert, BertConfig

    config = BertConfig(vocabulary=VOCABULARY, positions=32, width=32, layers=2, heads=2, hidden=64)
    return Bert(config), torch.randint(VOCABULARY, (2, 8)), torch.randint(VOCABULARY, (2, 8))


def llama() -> tuple[nn.Module, Tensor, Tensor]:
    """A Llama of two narrow layers, a prompt, and the tokens behind it."""
    from examples import generation

    prompt = torch.randint(VOCABULARY, (2, 8))
    return generation.llama(VOCABULARY, 32, 48, 2, 2), prompt, torch.randint(VOCABULARY, (2, 8))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {"resnet": resnet, "bert": bert, "llama": llama}


def logits(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """What a model says."""
    with torch.no_grad():
        made = model.eval()(inputs)
    return [made if isinstance(made, Tensor) else made.logits]


def tokens(model: Any, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """What ``generate`` makes of a prompt."""
    mask = torch.ones_like(inputs)
    return [model.generate(inputs, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)]


def step(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """A step of AdamW: the loss, all gradients, and all weights behind it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    made = model.train()(inputs)
    loss = F.cross_entropy((made if isinstance(made, Tensor) else made.logits).flatten(0, -2), labels.flatten())
    loss.backward()
    optimizer.step()
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    return [loss.detach(), gradients, torch.cat([parameter.detach().flatten() for parameter in parameters])]


def error_of(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest distance from what is expected, in units of its norm."""
    pairs = [(a.cpu().double(), b.cpu().double()) for a, b in zip(found, expected, strict=True)]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def run(name: str, device: torch.device) -> list[Outcome]:
    """All jobs of a model."""
    first = ("generate", tokens) if name == "llama" else ("inference", logits)
    outcomes = []
    for job, work in (first, ("training step", step)):
        for compiled in (False, True):
            torch.manual_seed(0)
            expected = work(*MODELS[name]())
            torch.manual_seed(0)
            model, inputs, labels = MODELS[name]()
            model.to(device)
            if compiled:
                model.compile()
            title = f"{name}, {job}, {'compiled' if compiled else 'eager'}"
            outcomes.append(measured(title, work, model, inputs, labels, expected))
    return [*outcomes, without_python(name, device)]


class Logits(nn.Module):
    """What a model says, alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Of tokens or images."""
        return logits(self.model, inputs, inputs)[0]


def without_python(name: str, device: torch.device) -> Outcome:
    """A model as a file, which a program without Python runs on the same driver."""
    model, inputs, labels = MODELS[name]()
    (expected,) = logits(model, inputs, labels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.obm")
        outboard.export(Logits(model).eval().to(device), inputs.to(device), path=path)
        loaded = outboard.load(path)
        Path(folder, "given").write_bytes(inputs.numpy().tobytes())
        given = f"{loaded.inputs[0].name}={folder}/given:{'x'.join(map(str, inputs.shape))}"
        command = [f"{outboard.cmake_prefix()}/bin/outboard-run", str(path), given, "--out", folder]
        settings = os.environ | {"OUTBOARD_DRIVER": drivers.sim()}
        subprocess.run(command, env=settings, check=True, stdout=subprocess.DEVNULL)
        raw = bytearray(Path(folder, f"{loaded.outputs[0].name}.bin").read_bytes())
    found = torch.frombuffer(raw, dtype=expected.dtype).view(expected.shape)
    return Outcome(f"{name}, inference without Python", 1, 0, error_of([found], [expected]), 0)


def measured(
    job: str,
    work: Callable[[Any, Tensor, Tensor], list[Tensor]],
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    expected: Sequence[Tensor],
) -> Outcome:
    """Runs a job on the model's device and counts."""
    device = next(model.parameters()).device
    ours = getattr(torch, device.type)
    ours.reset_compile_stats()
    ours.reset_fallbacks()
    found = [each.cpu() for each in work(model, inputs.to(device), labels.to(device))]
    stats = ours.compile_stats()
    calls = int(stats["hits"] + stats["misses"] + stats["executables"])
    for name, (count, reasons) in ours.fallbacks(reasons=True).items():
        print(f"{job}: {name} on the CPU, {count} times: {'; '.join(reasons)}", file=sys.stderr)
    on_cpu = sum(ours.fallbacks().values())
    return Outcome(job, calls, on_cpu, error_of(found, expected), int(stats["compiled"]))


def in_process(name: str, cache: str) -> list[Outcome]:
    """All jobs of a model, in a process of its own on the simulator."""
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_CACHE_DIR": cache}
    command = [sys.executable, "-W", "ignore", "-m", "examples.graph_tier", "--run", name]
    result = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True)
    return [Outcome(**fields) for fields in json.loads(result.stdout.splitlines()[-1])]


def main() -> int:
    """Runs the models named, or all, each in two processes, and prints a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "models", nargs="*", default=[*MODELS], metavar="MODEL", help=f"{', '.join(MODELS)}; by default all"
    )
    parser.add_argument("--run", choices=MODELS, help="run a model in this process, and print what it did as JSON")
    options = parser.parse_args()
    if options.run is not None:
        device = torch.device(torch._C._get_privateuse1_backend_name())
        print(json.dumps([asdict(outcome) for outcome in run(options.run, device)]))
        return 0
    passed = True
    print(f"{'':36}{'calls':>8}{'on the device':>16}{'error':>10}{'compiled':>10}{'by a second process':>21}")
    for name in options.models:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = in_process(name, cache), in_process(name, cache)
        for first, second in zip(cold, warm, strict=True):
            passed = passed and first.passes(warm=False) and second.passes(warm=True)
            counts = f"{first.calls:8}{first.share:16.1%}{first.error:10.1e}{first.compiled:10}{second.compiled:21}"
            print(f"{first.job:36}{counts}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
