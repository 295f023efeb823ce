# SPDX-License-Identifier: Apache-2.0
"""Which models later processes need not trace again, and what that saves.

``python -m benchmarks.kept_traces [--only PATTERN]``. Each of forty models of transformers, small and with random
weights, compiled, runs in three processes in turn with the same caches: the first traces and compiles; the second has
the kept trace; the third does without (``OUTBOARD_PRECOMPILE=0``), and has all other caches. Times are from the first
call until its result is there.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from examples.measure import table

_TEXT: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 8}
_GPT: dict[str, Any] = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
_PATCHES = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip
_WINDOWS = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
}  # fmt: skip
_PYRAMID = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
_SOUND = _TEXT | {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2}

#: Classes of transformers and their configurations.
MODELS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": _TEXT,
    "RobertaForMaskedLM": _TEXT,
    "ElectraForMaskedLM": _TEXT | {"embedding_size": 32},
    "AlbertForMaskedLM": _TEXT | {"embedding_size": 32},
    "DistilBertForMaskedLM": {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "DebertaV2ForMaskedLM": _TEXT,
    "MPNetForMaskedLM": _TEXT,
    "ModernBertForMaskedLM": _TEXT,
    "GPT2LMHeadModel": {key: value for key, value in _GPT.items() if key != "rotary_dim"},
    "GPTJForCausalLM": _GPT,
    "GPTNeoForCausalLM": {
        "vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
    },
    "GPTNeoXForCausalLM": _TEXT,
    "OPTForCausalLM": _TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "BloomForCausalLM": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "FalconForCausalLM": _TEXT,
    "MptForCausalLM": {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "LlamaForCausalLM": _GROUPED,
    "MistralForCausalLM": _GROUPED,
    "MixtralForCausalLM": _GROUPED | {"num_local_experts": 4},
    "Qwen2ForCausalLM": _GROUPED,
    "Qwen3ForCausalLM": _GROUPED,
    "GemmaForCausalLM": _GROUPED,
    "Gemma2ForCausalLM": _GROUPED,
    "PhiForCausalLM": _GROUPED,
    "Phi3ForCausalLM": _GROUPED,
    "StableLmForCausalLM": _GROUPED,
    "OlmoForCausalLM": _GROUPED,
    "CohereForCausalLM": _GROUPED,
    "GraniteForCausalLM": _GROUPED,
    "MambaForCausalLM": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "T5ForConditionalGeneration": {
        "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "ViTForImageClassification": _PATCHES,
    "DeiTForImageClassification": _PATCHES,
    "BeitForImageClassification": _PATCHES,
    "Dinov2ForImageClassification": _PATCHES,
    "SwinForImageClassification": _WINDOWS,
    "Swinv2ForImageClassification": _WINDOWS,
    "ConvNextForImageClassification": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "ResNetForImageClassification": _PYRAMID,
    "Wav2Vec2ForCTC": _SOUND,
}  # fmt: skip


def run(name: str) -> dict[str, Any]:
    """Runs a compiled model's forward, and then a step of its training, in this process. Returns the seconds of each,
    and whether anything was traced."""
    import torch
    import transformers
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**MODELS[name]))
    device = torch.accelerator.current_accelerator()
    if name.endswith("ImageClassification"):
        batch = {"pixel_values": torch.randn(2, 3, 32, 32)}
    elif name.endswith("CTC"):
        batch = {"input_values": torch.randn(2, 800)}
    else:
        batch = {"input_ids": torch.randint(3, 60, (2, 12))}
        if "decoder_start_token_id" in MODELS[name]:
            batch["decoder_input_ids"] = batch["input_ids"]
    batch = {key: value.to(device) for key, value in batch.items()}
    model.to(device).eval()
    compiled = torch.compile(model)

    def timed(is_training: bool) -> float:
        begin = time.perf_counter()
        with torch.set_grad_enabled(is_training):
            logits = compiled(**batch).logits
            if is_training:
                logits.square().mean().backward()
        torch.accelerator.synchronize()
        return time.perf_counter() - begin

    seconds = [timed(is_training=False), timed(is_training=True)]
    return {"seconds": seconds, "traced": counters["stats"]["unique_graphs"]}


def in_three_processes(name: str) -> list[dict[str, Any]]:
    """What ``run`` returns in each of three processes, the last of which does without kept traces."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {"OUTBOARD_CACHE_DIR": "ours", "POCL_CACHE_DIR": "pocl", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        environment = os.environ | {variable: f"{folder}/{name}" for variable, name in caches.items()}
        for kept in ("1", "1", "0"):
            command = [sys.executable, "-m", "benchmarks.kept_traces", "--run", name]
            own = environment | {"OUTBOARD_PRECOMPILE": kept}
            ended = subprocess.run(command, env=own, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(ended.stdout.splitlines()[-1]))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="which models, as a pattern")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        print(json.dumps(run(options.run)))
        return 0
    rows, shares = [], []
    for name in fnmatch.filter(MODELS, options.only):
        _, second, third = in_three_processes(name)
        is_served = second["traced"] == 0
        pairs = list(zip(second["seconds"], third["seconds"], strict=True))
        rows.append([name, "yes" if is_served else "no", *(f"{kept:.2f} / {traced:.2f}" for kept, traced in pairs)])
        if is_served:
            shares.append(sum(second["seconds"]) / sum(third["seconds"]))
        print(*rows[-1], sep="\t", file=sys.stderr, flush=True)
    print(table(["model", "nothing traced", "forward, s: kept / traced", "forward and backward, s"], rows))
    print(f"{len(shares)} of {len(rows)} models trace nothing in later processes", end="")
    print(f"; median time {statistics.median(shares):.2f} of what tracing takes" if shares else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
