# SPDX-License-Identifier: Apache-2.0
"""What a training step of a transformer takes on a cluster: DDP, FSDP2, tensor parallelism, and the last two together.

Products run at a part of the device's peak, collectives cost what :mod:`costs` says, and what
PyTorch overlaps is overlapped: DDP's sums with the backward pass, FSDP2's parts with the layer before. Tensor
parallelism's sums are waited for. Norms, activations and the optimizer move bytes at the memory's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from .costs import Cluster

#: Bytes of a parameter and of its gradient where they are computed with and sent, and of what an optimizer keeps
#: (float32 parameter and two moments).
_ITEM = 2
_STATE = 12
#: Bytes of DDP's buckets, and tensors of (tokens, width) that a layer of a transformer reads or writes in a step.
_BUCKET = 25 << 20
_PASSES = 34


@dataclass(frozen=True)
class Transformer:
    """A decoder: layers, width, width of the feed-forward (three matrices), vocabulary, tokens of a sequence."""

    layers: int
    width: int
    hidden: int
    vocabulary: int
    sequence: int

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: four matrices of attention, three of the feed-forward."""
        return 4 * self.width * self.width + 3 * self.width * self.hidden

    @property
    def parameters(self) -> int:
        """All, with an embedding and a head that are not shared."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.width

    def forward_flops(self, tokens: float) -> float:
        """Of the products in a forward pass over so many tokens: two for each parameter, and attention's own."""
        dense = 2 * (self.layers * self.layer_parameters + self.vocabulary * self.width)
        return tokens * (dense + 2 * self.layers * self.sequence * self.width)


@dataclass(frozen=True)
class Step:
    """A prediction: seconds of the step, of computing, of collectives that nothing hides, and bytes on a device."""

    seconds: float
    compute: float
    exposed: float
    memory: float


def _compute(model: Transformer, cluster: Cluster, tokens: float, split: int, shards: int) -> tuple[float, float]:
    """Seconds of (forward, backward and update) on one device, which has one of ``split`` parts of each layer and
    updates one of ``shards`` parts of all parameters."""
    device = cluster.device
    products = model.forward_flops(tokens) / split / (device.flops * cluster.efficiency)
    moved = model.layers * _PASSES / 3 * tokens * model.width * _ITEM / split / device.bandwidth
    update = 2 * model.parameters * (_STATE + _ITEM) / shards / device.bandwidth
    return products + moved, 2 * (products + moved) + update


def _memory(model: Transformer, tokens: float, shards: int, split: int, gathered: float) -> float:
    """Bytes: parameters, gradients and the optimizer's state in parts, activations, and layers that are gathered."""
    kept = model.parameters * (2 * _ITEM + _STATE) / shards
    return kept + model.layers * _PASSES / 2 * tokens * model.width * _ITEM / split + gathered


def ddp(model: Transformer, cluster: Cluster, tokens: int) -> Step:
    """A step with all parameters on each device, ``tokens`` on each; sums of gradients run beside the backward pass."""
    forward, backward = _compute(model, cluster, tokens, 1, 1)
    size = model.parameters * _ITEM
    buckets = max(1, size // _BUCKET)
    sums = buckets * cluster.collective("all_reduce", cluster.count, size / buckets)
    last = sums / buckets  # begins when the backward pass has ended
    exposed = last + max(0.0, sums - last - backward) if cluster.count > 1 else 0.0
    memory = _memory(model, tokens, 1, 1, 0.0)
    return Step(forward + backward + exposed, forward + backward, exposed, memory)


def fsdp(model: Transformer, cluster: Cluster, tokens: int, split: int = 1) -> Step:
    """A step of ``fully_shard`` on each layer, over ``count / split`` devices, ``tokens`` on each group of ``split``
    that has tensor parallelism between its devices.

    Layers are gathered in the forward and in the backward pass, one ahead of that which computes. ValueError if
    ``split`` does not divide the devices.
    """
    if cluster.count % split:
        raise ValueError(f"{split} does not divide {cluster.count} devices")
    shards = cluster.count // split
    forward, backward = _compute(model, cluster, tokens, split, cluster.count)
    size = model.layer_parameters * _ITEM / split
    gather = cluster.collective("all_gather", shards, size, split)
    scatter = cluster.collective("reduce_scatter", shards, size, split)
    sums = tensor_sums(model, cluster, tokens, split)
    layers = model.layers
    in_forward = max(0.0, gather - (forward + sums / 2) / layers) * (layers - 1) + gather
    in_backward = max(0.0, gather + scatter - (backward + sums / 2) / layers) * (layers - 1) + scatter
    exposed = in_forward + in_backward + sums
    memory = _memory(model, tokens, cluster.count, split, 2 * size if shards > 1 else 0.0)
    return Step(forward + backward + exposed, forward + backward, exposed, memory)


def tensor_sums(model: Transformer, cluster: Cluster, tokens: int, split: int) -> float:
    """Seconds of tensor parallelism's sums: two in each layer and direction, of all tokens' activations."""
    size = float(tokens * model.width * _ITEM)
    return 4 * model.layers * cluster.collective("all_reduce", split, size)


def tensor(model: Transformer, cluster: Cluster, tokens: int) -> Step:
    """A step with each layer split over all devices, which work on the same ``tokens``."""
    return fsdp(model, cluster, tokens, cluster.count)
