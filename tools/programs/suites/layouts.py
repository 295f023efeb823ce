# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not dense: sparse, nested, quantized, masked; and those that only have a shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.masked import as_masked_tensor, masked_tensor

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program


def _sparse(device: str) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1, 0], [2, 0, 0, 1]]), torch.tensor([3.0, 4, 5, 6]), (2, 3)).to(
        device
    )


@program()
def coordinates(device: str) -> Any:
    s = _sparse(device)
    c = s.coalesce()
    return (
        s,
        c,
        s.to_dense(),
        s + s,
        s * 2,
        c.indices(),
        s.t(),
        torch.sparse.sum(s, 1),
        s @ count(device, 3, 2),
        torch.sparse.mm(s, count(device, 3, 2)),
        c.sparse_dim(),
        s._nnz(),
        c.values() * 2,
        s.is_coalesced(),
        refused(lambda: s.indices()),
        torch.sparse.softmax(c, 1),
        s.clone(),
        s.float().double(),
        s.to("cpu"),
        c.abs(),
        c.sqrt(),
        torch.zeros_like(s),
        s.index_select(0, torch.tensor([1], device=device)),
        torch.cat([c, c]),
        c * count(device, 2, 3),
        s.transpose(0, 1).coalesce(),
        -c,
        c.unsqueeze(0),
    )


@program()
def coordinates_refused(device: str) -> Any:
    s = _sparse(device)
    i = torch.tensor([[0], [5]], device=device)
    return (
        refused(lambda: torch.sparse_coo_tensor(i, torch.ones(1, device=device), (2, 3))),
        refused(lambda: torch.sparse_coo_tensor(i, torch.ones(2, device=device))),
        refused(lambda: s.view(6)),
        refused(lambda: s.numpy()) if device == "cpu" else refused(lambda: s.cpu().numpy()),
        refused(lambda: s[0, 0].item())[:12],
        refused(lambda: s.exp())[:12],
        refused(lambda: s + 1)[:12],
        refused(lambda: s.storage()),
        refused(lambda: s.stride()),
        refused(lambda: s.as_strided((1,), (1,)))[:20],
        refused(lambda: s.data_ptr()),
        refused(lambda: torch.sparse_coo_tensor(i.float(), torch.ones(1, device=device))),
    )


@program()
def compressed(device: str) -> Any:
    x = count(device, 4, 4).fmod(3)
    csr = x.to_sparse_csr()
    return (
        csr,
        x.to_sparse_csc(),
        x.to_sparse_bsr((2, 2)),
        csr.to_dense(),
        csr @ x,
        csr.matmul(x[0]),
        csr * 2,
        csr.to_sparse_csc(),
        csr.to_sparse_coo(),
        csr.t(),
        torch.sparse_csr_tensor(csr.crow_indices(), csr.col_indices(), csr.values() + 1, (4, 4)),
        refused(lambda: torch.sparse_csr_tensor(csr.crow_indices()[:2], csr.col_indices(), csr.values(), (4, 4))),
        torch.addmm(x, csr, x),
        csr.values(),
        csr._nnz(),
        csr.cpu(),
        csr.double(),
        csr.abs(),
    )


@program()
def sparse_gradients(device: str) -> Any:
    s = _sparse(device).requires_grad_()
    w = randn(device, 3, 2, grad=True)
    torch.sparse.mm(s, w).sum().backward()
    d = randn(device, 2, 3, grad=True)
    d.to_sparse().to_dense().square().sum().backward()
    v = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=device), v, (3,)).to_dense().exp().sum().backward()
    return s.grad, w.grad, d.grad, v.grad


@program()
def nested(device: str) -> Any:
    parts = [count(device, 2, 4), count(device, 3, 4)]
    n = torch.nested.nested_tensor(parts)
    return (
        n,
        n * 2,
        n + n,
        n.to_padded_tensor(-1.0),
        n.sin(),
        torch.nn.functional.linear(n, count(device, 3, 4)),
        n.softmax(-1),
        n.transpose(1, 2),
        n.size(0),
        n[0],
        refused(lambda: n.shape),
        refused(lambda: n.size(1)),
        n.is_nested,
        refused(lambda: n + torch.nested.nested_tensor(parts[::-1])),
        torch.nested.as_nested_tensor(parts),
        n.unbind(),
        torch.bmm(n, n.transpose(1, 2)),
        n.cpu(),
        refused(lambda: n.view(2)),
        n.numel(),
    )


@program()
def jagged(device: str, wrap: Wrap) -> Any:
    parts = [count(device, 2, 4), count(device, 3, 4)]
    n = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    w = count(device, 4, 4) / 16
    out = wrap(lambda n, w: (n @ w).sin() * 2)(n, w)
    out.values().sum().backward()
    return (
        out.values(),
        n.grad.values(),
        n.offsets(),
        n.to_padded_tensor(0.0),
        torch.nested.nested_tensor_from_jagged(count(device, 5, 2), torch.tensor([0, 1, 5], device=device)).unbind(),
        n.sum(-1).values(),
        torch.nn.functional.layer_norm(n, (4,)).values(),
        n.shape[0],
        n.dim(),
    )


@program()
def quantized(device: str) -> Any:
    x = count(device, 2, 4) / 3
    return (
        torch.fake_quantize_per_tensor_affine(x, 0.1, 2, 0, 255),
        torch.fake_quantize_per_channel_affine(
            x,
            torch.tensor([0.1, 0.2], device=device),
            torch.tensor([0, 1], dtype=torch.int32, device=device),
            0,
            -128,
            127,
        ),
        torch.ao.quantization.MinMaxObserver().to(device)(x),
        torch.ao.quantization.HistogramObserver().to(device)(x),
        refused(lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255)),
        torch.quantize_per_tensor(x.cpu(), 0.1, 2, torch.quint8).dequantize(),
        torch.fake_quantize_per_tensor_affine(
            x, torch.tensor(0.1, device=device), torch.tensor(2, dtype=torch.int32, device=device), 0, 255
        ),
    )


@program()
def prepared_for_quantization(device: str) -> Any:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255).to(device)
    x = randn(device, 3, 4, grad=True)
    out = fake(x)
    out.sum().backward()
    return out, x.grad, fake.scale, fake.zero_point, fake.calculate_qparams(), fake.state_dict()


@program()
def masked(device: str) -> Any:
    x, mask = count(device, 2, 3), torch.tensor([[True, False, True], [False, False, True]], device=device)
    m = masked_tensor(x, mask)
    return (
        m.sum(1).get_data(),
        m.amax(1).get_data(),
        (m * 2).get_data(),
        m.to_tensor(-1.0),
        as_masked_tensor(x, mask).get_mask(),
        m.mean().get_data(),
        torch.masked.softmax(x, 1, mask=mask),
        torch.masked.sum(x, 1, mask=mask),
        torch.masked.var(x, 1, mask=mask),
        torch.masked.logsumexp(x, 1, mask=mask),
        refused(lambda: m + masked_tensor(x, ~mask)),
        repr(m),
        torch.masked.argmax(x, 1, mask=mask),
        torch.masked.norm(x, 2, 1, mask=mask),
        torch.masked.cumsum(x, 1, mask=mask),
    )


@program()
def shapes_only(device: str) -> Any:
    m = torch.empty(2, 3, device="meta")
    x = count(device, 2, 3)
    return (
        (m + 1).shape,
        (m.t() @ m),
        x.to("meta"),
        torch.empty_like(x, device="meta"),
        refused(lambda: m.to(device)),
        refused(lambda: m.item()),
        refused(lambda: (m + x).shape),
        refused(lambda: x.copy_(m)),
        repr(m),
        torch.empty_like(m, device=device).shape,
        refused(lambda: m.tolist()),
        torch.zeros_like(m, device=device),
        m.is_meta,
    )


@program()
def fakes(device: str) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 3, device=device)
        y = x @ x.t()
        return (
            y.shape,
            str(y.device),
            torch.sort(x)[1].dtype,
            x[:, None].stride(),
            (x + torch.ones((), device="cpu")).shape,
            refused(lambda: x + torch.ones(2, 3, device="meta")),
            x.t().contiguous().stride(),
            torch.nn.functional.conv2d(x[None, None], torch.empty(1, 1, 2, 2, device=device)).shape,
        )


@program()
def subclasses(device: str) -> Any:
    class Logged(Tensor):
        calls: list[str] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = count(device, 3).as_subclass(Logged)
    y = torch.cat([x + 1, x * 2])
    y[0] = 5
    return type(y).__name__, y.as_subclass(Tensor), Logged.calls[:6], type(torch.nn.Parameter(x)).__name__, repr(y)


@program()
def dispatch_modes(device: str) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    x = randn(device, 3, 4, grad=True)
    with Names() as mode:
        torch.nn.functional.layer_norm(x, (4,)).relu().mean().backward()
        torch.nn.functional.cross_entropy(x, torch.tensor([0, 1, 2], device=device))
    return mode.names


@program()
def flops(device: str) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    x = randn(device, 4, 8, grad=True)
    with FlopCounterMode(display=False) as counter:
        (x @ x.t()).sum().backward()
        torch.nn.functional.conv1d(x[None], torch.ones(2, 4, 3, device=device))
        torch.nn.functional.scaled_dot_product_attention(*(torch.ones(1, 2, 4, 8, device=device),) * 3)
    return counter.get_total_flops()
