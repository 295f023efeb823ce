# SPDX-License-Identifier: Apache-2.0
"""Processor time of the first training step of small models, in new processes with empty caches.

``python -m benchmarks.first_step [--shipped FOLDER] [--only PATTERN]``. The time is that of all threads, and of the
compiler's processes, from the model's way to the device until its loss is there; imports come before. ``FOLDER`` is
what ``python tools/ship_plans.py FOLDER`` wrote: plans and programs as a wheel brings them. ``OUTBOARD_DRIVER`` chooses
the driver.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.measure import table

_TEXT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

#: Classes of transformers and their configurations: other sizes than those whose plans a wheel brings.
MODELS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": _TEXT,
    "T5ForConditionalGeneration": {
        "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "SwinForImageClassification": {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    },
    "MambaForCausalLM": {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
}  # fmt: skip


def used() -> float:
    """Seconds of processor time of this process and of those that it has waited for."""
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def step(name: str, shipped: Path | None) -> dict[str, Any]:
    """Takes the step in this process. Returns seconds and what was compiled."""
    import torch
    import transformers

    from outboard import _C
    from outboard.compiler.plans import shipped as plans

    if shipped is not None:
        plans.FILE = shipped / "shipped"
        _C.set_shipped_programs(str(shipped / "programs"))
    torch.manual_seed(0)
    model_class: Callable[..., Any] = getattr(transformers, name)
    model = model_class(model_class.config_class(**MODELS[name]))  # type: ignore[attr-defined]
    text = torch.randint(3, 60, (2, 12))
    batch = {"input_ids": text, "labels": text}
    if "image_size" in MODELS[name]:
        batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    device = torch.accelerator.current_accelerator()
    assert device is not None
    before, begin = used(), time.perf_counter()
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(**{key: value.to(device) for key, value in batch.items()}).loss
    loss.backward()
    optimizer.step()
    loss.item()
    torch.accelerator.synchronize()
    module = getattr(torch, device.type)
    counts = module.compile_stats()
    return {
        "processor": used() - before,
        "wall": time.perf_counter() - begin,
        "driver": module.get_device_properties(0).driver,
        "plans": counts.get("compiled", 0),
        "programs": counts.get("programs_built", 0),
        "fallbacks": sum(module.fallbacks().values()),
    }


def in_new_process(name: str, shipped: Path | None) -> dict[str, Any]:
    """The same in a process of its own, whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"OUTBOARD_CACHE_DIR": "ours", "POCL_CACHE_DIR": "pocl", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        environment = os.environ | {variable: f"{folder}/{name}" for variable, name in caches.items()}
        command = [sys.executable, "-m", "benchmarks.first_step", "--step", name]
        command += ["--shipped", str(shipped)] if shipped is not None else []
        run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shipped", type=Path, help="folder of plans and programs as a wheel brings them")
    parser.add_argument("--only", default="*", help="which models, as a pattern")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shipped = options.shipped.resolve() if options.shipped is not None else None
    if options.step is not None:
        print(json.dumps(step(options.step, shipped)))
        return 0
    rows = []
    for name in fnmatch.filter(MODELS, options.only):
        each = in_new_process(name, shipped)
        counts = [str(each[count]) for count in ("plans", "programs", "fallbacks")]
        rows.append([name, each["driver"], f"{each['processor']:.2f} s", f"{each['wall']:.2f} s", *counts])
    print(table(["model", "driver", "processor", "wall", "plans made", "programs built", "on the CPU"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
