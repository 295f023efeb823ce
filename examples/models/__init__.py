# SPDX-License-Identifier: Apache-2.0
"""Compact definitions of well-known models, for demo, tests and benchmarks. All weights are random but seeded."""

from examples.models.bert import Bert, BertConfig
from examples.models.gpt2 import GPT2, GPT2Config
from examples.models.llama import Llama, LlamaConfig
from examples.models.resnet import ResNet, resnet18, resnet50

__all__ = ["GPT2", "Bert", "BertConfig", "GPT2Config", "Llama", "LlamaConfig", "ResNet", "resnet18", "resnet50"]
