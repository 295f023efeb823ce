# SPDX-License-Identifier: Apache-2.0
"""Dtypes: promotion, casts, scalars, numbers at the edges, and how tensors are printed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program

_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


@program(dtypes=(torch.complex64,))
def promoted(device: str) -> Any:
    found = []
    for one in _DTYPES:
        x = torch.tensor([1, 2], device=device).to(one)
        found += [
            x + torch.tensor([1, 0], device=device).to(other)
            for other in _DTYPES
            if other != torch.bool or one != torch.bool
        ]
        found += [x * 2, x * 2.5, x * 2j, x == 1, x / 2, x + torch.tensor(1.5, device=device, dtype=torch.float64)]
    return found


@program(dtypes=(torch.complex64,))
def converted(device: str) -> Any:
    values = torch.tensor([0.0, 1.7, -1.7, 250.0, -0.0])
    return [[values.abs().to(one).to(device).to(other) for other in _DTYPES] for one in _DTYPES]


@program(dtypes=(torch.complex64,))
def complex_to_real(device: str) -> Any:
    z = torch.tensor([1 + 2j, -3j], device=device)
    x = torch.zeros(2, device=device)
    x.copy_(z)
    return (
        x,
        z.to(torch.float32),
        z.real,
        z.imag,
        refused(lambda: float(z[0])),
        refused(lambda: torch.zeros(2, device=device).add_(z)),
        refused(lambda: z > z),
        refused(lambda: z.max()),
        refused(lambda: z.floor()),
        z.type(torch.float64),
        refused(lambda: x.fill_(1j)),
        refused(lambda: torch.full((2,), 1j, dtype=torch.float32, device=device)),
        z.abs(),
        z.angle(),
        z.conj().is_conj(),
        z.conj().resolve_conj(),
        z.conj().imag.is_neg(),
        refused(lambda: z.conj().view(torch.float32)),
    )


@program()
def scalars(device: str) -> Any:
    x = torch.tensor(3.7, device=device)
    i = torch.tensor(5, device=device)
    return (
        float(x),
        int(x),
        bool(x),
        complex(x),
        i.item(),
        x.tolist(),
        [1, 2, 3, 4, 5, 6][i],
        range(i)[-1],
        refused(lambda: round(x)),
        abs(-i),
        divmod(7, int(i)),
        2**i,
        i**2,
        7 // i,
        7 % i,
        -7 % i,
        f"{x:.2f} {i:03d}",
        hash(i) == hash(i),
        x in torch.tensor([3.7], device=device),
        pow(i, 2),
        3 - x,
        1 / i,
        i & 4,
        1 | i,
        ~i,
        i << 1,
        True + i,
        x.is_integer() if hasattr(x, "is_integer") else None,
        copy.copy(i),
        i.__index__(),
        format(i, "x"),
        x.__format__("e"),
        2.0**x,
        i.numel(),
        x.dim(),
        torch.tensor(True, device=device) + 1,
        refused(lambda: format(torch.ones(2, device=device), ".1f")),
    )


@program()
def overflows(device: str) -> Any:
    return [
        torch.tensor([127, -128], dtype=torch.int8, device=device) + 1,
        torch.tensor([255], dtype=torch.uint8, device=device) + 1,
        torch.tensor([2**63 - 1], device=device) + 1,
        torch.tensor([65504.0], dtype=torch.float16, device=device) * 2,
        torch.tensor([2**31 - 1], dtype=torch.int32, device=device) * 2,
        torch.tensor([-(2**63)], device=device).abs(),
        torch.tensor([3.0, -3, 0], device=device) // 0,
        torch.tensor([-7, 7], device=device) // 2,
        torch.tensor([-7, 7], device=device).fmod(2),
        torch.tensor([-7.5, 7.5], device=device) % 2,
        torch.tensor([2**53 + 1], device=device).double(),
        torch.tensor([2**53 + 1], device=device).sum(),
        torch.tensor([2**62, 2**62], device=device).sum(),
        torch.tensor([2**40], device=device) ** 2,
        torch.tensor([300, -1], device=device).to(torch.uint8),
        torch.tensor([100, 100], dtype=torch.int8, device=device).sum(),
        torch.tensor([100, 100], dtype=torch.uint8, device=device).cumsum(0),
        torch.tensor([100, 100], dtype=torch.int8, device=device).prod(dtype=torch.int8),
        torch.tensor([1, 2], device=device).float().mean(),
        refused(lambda: torch.tensor([1, 2], device=device).mean()),
        torch.tensor([5, 7], dtype=torch.int16, device=device).pow(3),
        torch.tensor([True, True], device=device).sum(),
        torch.tensor([-1, 64, 3], device=device) >> 1,
        torch.tensor([1], dtype=torch.int32, device=device) << 31,
        torch.tensor([1e30], device=device).half(),
        torch.tensor([float("nan"), 1.0], device=device).bool(),
        torch.tensor([0.5, 1.5, 2.5, -0.5], device=device).round(),
        torch.tensor([1, 0], device=device).reciprocal(),
        refused(lambda: torch.tensor([300], dtype=torch.uint8, device=device)),
        refused(lambda: torch.tensor([2**63], device=device)),
        refused(lambda: torch.ones(1, dtype=torch.int8, device=device) + 1000),
        torch.ones(1, dtype=torch.int8, device=device).mul(300.5),
        refused(lambda: torch.full((1,), 2**40, dtype=torch.int32, device=device)),
        refused(lambda: torch.zeros(1, dtype=torch.uint8, device=device).fill_(-1)),
    ]


@program()
def specials(device: str) -> Any:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40], device=device)
    return (
        x.sort(),
        x.max(),
        x.min(),
        x.argmax(),
        x.nanmean(),
        x.nansum(),
        x.isfinite(),
        x.nan_to_num(),
        x.sign(),
        x.signbit(),
        x.clamp(-1, 1),
        x == x,
        torch.maximum(x, x.flip(0)),
        torch.fmax(x, x.flip(0)),
        x.softmax(0),
        x.unique(),
        x.topk(3),
        x.cummax(0),
        x.logsumexp(0),
        x.atan2(x.flip(0)),
        x.frexp(),
        torch.nextafter(x, x.flip(0)),
        x.copysign(-x),
        x.std(),
        x.isclose(x, equal_nan=True),
        torch.allclose(x, x),
        x.equal(x),
        x.logit(),
        x.heaviside(x),
        x.float_power(2),
        x.hypot(x),
        x.xlogy(x) if hasattr(x, "xlogy") else None,
    )


@program()
def narrow_floats(device: str) -> Any:
    x = torch.tensor([0.1, 1.5, 500.0, -3.0])
    found = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        y = x.to(dtype).to(device)
        found += [
            y.float(),
            y.half() + 1,
            x.to(device).to(dtype).float(),
            y.view(torch.uint8),
            refused(lambda y=y: y + y),
            repr(y),
        ]
    return found


@program()
def unsigned(device: str) -> Any:
    found = []
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        x = torch.tensor([1, 60000], dtype=dtype).to(device)
        found += [
            x.to(torch.int64),
            repr(x),
            x.tolist(),
            refused(lambda x=x: x + torch.ones(2, dtype=torch.int32, device=device)),
            x == 1,
            x.clone(),
        ]
    return found


@program(dtypes=(torch.complex64,))
def printed_dtypes(device: str) -> Any:
    for dtype in _DTYPES:
        x = torch.tensor([[0, 1], [2, 3]], device=device).to(dtype)
        print(x, x[0, 0], x[:0], x.sum() if dtype != torch.bool else x.any())
    print(
        torch.tensor([1e-8, 1.0, 1e8], device=device),
        torch.tensor([float("nan"), float("inf"), 1], device=device),
        torch.tensor([1.0, 2.0], device=device),
    )
    print(
        torch.tensor([1 + 2j, complex("nan")], device=device),
        torch.tensor([1 + 2j], device=device).conj(),
        torch.tensor([-1j], device=device).imag,
    )
    print(
        torch.zeros(2, 0, 3, device=device), torch.ones((), device=device), count(device, 30, 40), count(device, 2000)
    )
    return str(count(device, 3)), repr(torch.nn.Parameter(count(device, 3))), f"{count(device, 2)}"


@program()
def printed_with_gradients(device: str) -> Any:
    x = randn(device, 3, grad=True)
    print(x * 0, x.detach() * 0, (x * 0).sum(), (x * 0)[1:])
    print(
        torch.ones(2, device=device, requires_grad=True),
        torch.ones(2, 1, device=device).expand(2, 2),
        torch.nn.Parameter(torch.ones(1, device=device), requires_grad=False),
    )
    torch.func.vmap(lambda t: (print(t), t)[1])(torch.ones(2, 2, device=device))
    torch.func.grad(lambda t: (print(t), t.sum())[1])(torch.ones(2, device=device))
    return [repr(torch.ones(2, device=device).to("meta"))]


@program()
def printed_with_options(device: str) -> Any:
    x = torch.tensor([1.23456, 1234.5, 1e-3], device=device)
    try:
        for options in (
            {"precision": 2},
            {"sci_mode": True},
            {"profile": "full"},
            {"threshold": 2, "edgeitems": 1},
            {"linewidth": 20},
        ):
            torch.set_printoptions(profile="default")
            torch.set_printoptions(**options)
            print(x, count(device, 3, 3))
    finally:
        torch.set_printoptions(profile="default")
    return None


@program(dtypes=(torch.complex64,))
def printed_layouts(device: str) -> Any:
    s = torch.eye(3, device=device).to_sparse()
    print(
        s,
        s.to_sparse_csr(),
        s.to_sparse_csc(),
        torch.eye(4, device=device).to_sparse_bsr((2, 2)),
        torch.eye(2, device=device, dtype=torch.complex64).to_sparse(),
    )
    print(torch.nested.nested_tensor([count("cpu", 2), count("cpu", 3)], device=device))
    print(torch.quantize_per_tensor(count("cpu", 3), 0.5, 1, torch.qint8))
    return None


@program()
def factories(device: str) -> Any:
    d = {"device": device}
    x = count(device, 2, 3)
    return (
        torch.zeros(2, **d),
        torch.ones(2, dtype=torch.int8, **d),
        torch.full((2,), 3, **d),
        torch.full((2,), True, **d),
        torch.arange(3, **d),
        torch.arange(0, 1, 0.3, **d),
        torch.linspace(0, 1, 4, **d),
        torch.logspace(0, 2, 3, **d),
        torch.eye(2, 3, **d),
        torch.tensor([[1, 2.5]], **d),
        torch.as_tensor([1, 2], **d),
        torch.empty(2, 0, **d),
        torch.zeros_like(x, dtype=torch.bool),
        x.new_ones(2),
        x.new_full((1,), 2),
        x.new_zeros((2,), dtype=torch.int32),
        torch.tril_indices(3, 3, **d),
        torch.hann_window(5, **d),
        torch.scalar_tensor(2, **d),
        torch.complex(x, x),
        torch.cartesian_prod(x[0], x[1]),
        torch.combinations(x[0]),
        torch.vander(x[0]),
        torch.block_diag(x, x),
        torch.meshgrid(x[0], x[1], indexing="ij"),
        torch.full_like(x, 7, memory_format=torch.contiguous_format),
        torch.empty_like(x.t()).stride(),
        torch.asarray([1, 2], **d),
        torch.empty_strided((2, 2), (1, 2), **d).stride(),
        torch.arange(5, dtype=torch.float16, **d),
        torch.linspace(3, -3, 5, dtype=torch.int64, **d),
        torch.tensor(x.tolist(), **d),
        torch.bartlett_window(4, **d),
        torch.hamming_window(4, periodic=False, **d),
        torch.from_numpy(x.cpu().numpy()).to(device),
    )


@program()
def warned_factories(device: str) -> Any:
    x = count(device, 2)
    return (
        torch.tensor(x),
        x.new_tensor(x),
        torch.range(0, 2, device=device),
        torch.meshgrid(x, x),
        x.T,
        count(device, 1, 2, 3).T,
        torch.ones(2, device=device).type(),
        torch.norm(x),
        torch.chain_matmul(x[None], x[:, None]),
    )


@program()
def rounding_modes(device: str, wrap: Wrap) -> Any:
    x, y = torch.tensor([7.0, -7.0, 0.0], device=device), torch.tensor([2.0, 2.0, -3.0], device=device)
    return wrap(
        lambda x, y: (
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, y, rounding_mode="trunc"),
            x.remainder(y),
            x.fmod(y),
            x.round(decimals=-1),
            torch.floor_divide(x, y),
            x.trunc(),
            x.frac(),
            x.long() // y.long(),
            x.long() % y.long(),
            torch.div(x.long(), y.long()),
            torch.div(x.long(), y.long(), rounding_mode="trunc"),
            x.sub(y, alpha=2),
            torch.addcmul(x, y, y, value=0.5),
            torch.addcdiv(x, y, y),
            x.ceil(),
            x.sign(),
        )
    )(x, y)


@program()
def default_dtype(device: str) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            return (
                torch.ones(2, device=device),
                torch.tensor(1.0, device=device),
                torch.arange(2, device=device) / 2,
                torch.arange(3, device=device).float().dtype,
                torch.ones(2, dtype=torch.int64, device=device).sqrt(),
                torch.tensor([1j], device=device),
                torch.linspace(0, 1, 3, device=device),
                torch.arange(2, device=device).mul(0.5),
                repr(torch.ones(1, device=device)),
                repr(torch.ones(1, dtype=torch.float32, device=device)),
            )
    finally:
        torch.set_default_dtype(torch.float32)


@program()
def inspected(device: str) -> Any:
    x = count(device, 2, 3)
    return (
        torch.finfo(x.dtype).eps,
        x.element_size(),
        x.nbytes,
        x.itemsize,
        x.is_floating_point(),
        x.is_signed(),
        torch.can_cast(x.dtype, torch.int32),
        torch.result_type(x, 1j),
        x.type(),
        x.layout == torch.strided,
        x.is_cuda,
        x.is_meta,
        x.is_sparse,
        x.is_quantized,
        x.is_shared() if device == "cpu" else False,
        x.is_leaf,
        x.ndim,
        x.is_pinned(),
        x.dim_order(),
        x.is_set_to(x),
        torch.is_tensor(x),
        torch.is_nonzero(x[0, 1]),
        torch.numel(x),
        x.storage_offset(),
        x.is_inference(),
        x.retains_grad,
        x.output_nr,
        x.grad_fn,
        x.requires_grad,
        torch.is_same_size(x, x),
        torch.typename(x),
    )
