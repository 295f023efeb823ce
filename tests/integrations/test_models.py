# SPDX-License-Identifier: Apache-2.0
"""Libraries that need no adapter: what they compute on the device is what they compute on the CPU, forward and
backward, with no operator that runs elsewhere. The extra ``ecosystem`` installs them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


@pytest.fixture(autouse=True)
def nothing_elsewhere(device: str) -> Iterator[None]:
    module = torch.get_device_module(device)
    before = module.fallbacks()
    torch.manual_seed(0)
    yield
    assert module.fallbacks() == before


def _compare(model: nn.Module, call: Callable[..., Tensor], arguments: tuple[Any, ...], device: str) -> None:
    """Results and gradients of ``call(model, *arguments)``, which returns one tensor."""
    other = copy.deepcopy(model).to(device)
    expected = call(model, *arguments)
    found = call(other, *tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, arguments))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().mean().backward()
    found.square().mean().backward()
    for one, two in zip(other.parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-3, atol=1e-5)


def test_peft(device: str) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    adapters = peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS", init_lora_weights=False)
    model = peft.get_peft_model(transformers.BertForSequenceClassification(config), adapters).eval()
    _compare(model, lambda m, ids: m(ids).logits, (torch.randint(50, (2, 8)),), device)


def test_diffusers(device: str) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4,
    ).eval()  # fmt: skip
    arguments = (torch.randn(1, 4, 8, 8), 3, torch.randn(1, 3, 16))
    _compare(model, lambda m, image, step, text: m(image, step, text).sample, arguments, device)


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv", "SAGEConv", "GINConv"])
def test_graph_networks(device: str, kind: str) -> None:
    library = pytest.importorskip("torch_geometric.nn")
    layer = library.GINConv(nn.Linear(8, 4)) if kind == "GINConv" else getattr(library, kind)(8, 4)
    edges, nodes, graphs = torch.randint(20, (2, 60)), torch.randn(20, 8), torch.arange(20) // 10
    _compare(layer, lambda m, x, e, g: library.global_mean_pool(m(x, e), g), (nodes, edges, graphs), device)


def test_metrics(device: str) -> None:
    metrics = pytest.importorskip("torchmetrics")
    kinds = ("Accuracy", "F1Score", "AUROC", "ConfusionMatrix", "AveragePrecision", "CalibrationError")
    made = metrics.MetricCollection([getattr(metrics.classification, f"Multiclass{kind}")(5) for kind in kinds])
    here = copy.deepcopy(made).to(device)
    scores, labels = torch.randn(64, 5).softmax(1), torch.randint(5, (64,))
    for first in (0, 32):
        made.update(scores[first : first + 32], labels[first : first + 32])
        here.update(scores[first : first + 32].to(device), labels[first : first + 32].to(device))
    expected = made.compute()
    for name, value in here.compute().items():
        torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-5, atol=1e-6)
