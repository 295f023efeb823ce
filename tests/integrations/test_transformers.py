# SPDX-License-Identifier: Apache-2.0
"""transformers finds the device by itself: ``Trainer``, ``device_map="auto"``, ``pipeline()``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the extra `demo` installs it")
pytest.importorskip("accelerate", reason="the extra `test` installs it")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "good", "bad", "film", "it", "was", "the"]]


def _tokenizer(folder: Path) -> Any:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))


def _classifier(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def _train(folder: Path, dropout: float = 0.0, begin: Path | None = None, **options: Any) -> Any:
    rows = [{"input_ids": torch.tensor([2, 5 + i % 7, 6 + i % 2, 3]), "labels": torch.tensor(i % 2)} for i in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
        report_to=[], disable_tqdm=True, seed=1, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(model=_classifier(dropout), args=arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=begin and str(begin))
    return trainer


def _losses(trainer: Any) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_trainer(device: str, tmp_path: Path, precision: str) -> None:
    options = {} if precision == "float32" else {precision: True}
    trainer = _train(tmp_path / "ours", **options)
    assert trainer.args.device.type == device and trainer.args.n_gpu == 1
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {device}
    found, expected = _losses(trainer), _losses(_train(tmp_path / "cpu", use_cpu=True))
    tolerance = 1e-3 if precision == "float32" else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert len(found) == 6


def test_a_resumed_training_goes_on_as_it_would_have(device: str, tmp_path: Path) -> None:
    """The device's generator, too, which dropout draws from, is in the checkpoint."""
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "dropout": 0.5}
    whole = _losses(_train(tmp_path, **options))
    torch.rand(1000, device=device)
    resumed = _losses(_train(tmp_path, begin=tmp_path / "checkpoint-3", **options))
    torch.testing.assert_close(resumed, whole)


def test_the_cpu_where_it_is_asked_for(tmp_path: Path) -> None:
    assert transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True).device.type == "cpu"


def test_device_map(device: str, tmp_path: Path) -> None:
    model = _classifier().eval()
    model.save_pretrained(tmp_path)
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path, device_map="auto")
    assert {parameter.device.type for parameter in loaded.parameters()} == {device}
    ids = torch.tensor([[2, 6, 8, 3]])
    torch.testing.assert_close(loaded(ids.to(device)).logits.cpu(), model(ids).logits, rtol=1e-4, atol=1e-5)


def test_pipeline(device: str, tmp_path: Path) -> None:
    model, tokenizer = _classifier().eval(), _tokenizer(tmp_path)
    expected = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    text = "it was a good film"
    label = expected(text)[0]
    found = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert found.device.type == device
    assert found(text)[0]["label"] == label["label"]
    assert abs(found(text)[0]["score"] - label["score"]) < 1e-5


def test_a_fallback_of_nothing(device: str, tmp_path: Path) -> None:
    """A whole training without an operator that the device does not have."""
    module = torch.get_device_module(device)
    before = module.fallbacks()
    _train(tmp_path)
    assert module.fallbacks() == before


def test_sentence_transformers(device: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="the extra `demo` installs it")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    _tokenizer(tmp_path).save_pretrained(tmp_path)
    texts = ["it was a good film", "the film was bad", "good"]
    model = library.SentenceTransformer(str(tmp_path))
    assert model.device.type == device
    expected = library.SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    torch.testing.assert_close(torch.from_numpy(model.encode(texts)), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
