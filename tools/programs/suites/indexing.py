# SPDX-License-Identifier: Apache-2.0
"""Indexing in every form, writing in place and by ``out=``, views and what overlaps."""

from __future__ import annotations

from typing import Any

import torch

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program


@program()
def read_by_numbers(device: str, wrap: Wrap) -> Any:
    x = count(device, 3, 4, 5)
    return wrap(
        lambda x: (
            x[1],
            x[-1, 2],
            x[..., 0],
            x[None, 1:],
            x[:, None, ::2],
            x[()],
            x[...],
            x[0:0],
            x[True],
            x[False],
            x[1:9, -3:-1],
            x[2, 3, 4],
        )
    )(x)


@program()
def read_by_tensors(device: str) -> Any:
    x = count(device, 3, 4, 5)
    i, j = torch.tensor([2, 0], device=device), torch.tensor([[1], [3]], device=device)
    return (
        x[i],
        x[:, i],
        x[i, j],
        x[i, :, j],
        x[..., i],
        x[i[:, None], j, 0],
        x[torch.tensor(1, device=device)],
        x[[0, 2]],
        x[[[0, 1], [2, 0]]],
        x[i.to(torch.int32)],
        x[torch.tensor([0, 1])],
        x[i.cpu(), j.cpu()],
        x[None, i],
        x[i, None],
        x[-i],
        x[i.to(torch.uint8).long()],
        x[i, 1:3],
        x[:, i, :][:, :, j],
        x[range(2)],
        x[torch.tensor([], dtype=torch.long, device=device)],
    )


@program()
def read_by_masks(device: str) -> Any:
    x = count(device, 3, 4)
    mask = x % 2 == 0
    return (
        x[mask],
        x[mask[:, 0]],
        x[:, mask[0]],
        x[mask[:, 0], 1],
        x[mask.cpu()],
        x[mask.to(torch.uint8)],
        x[torch.tensor(True, device=device)],
        x[~mask & (x > 4)],
        refused(lambda: x[mask[:, 0], mask[0, :3]]),
        x[mask & False],
    )


@program()
def read_refused(device: str) -> Any:
    x = count(device, 3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool, device=device)
    return (
        refused(lambda: x[::-1]),
        refused(lambda: x[5]),
        refused(lambda: x[0, 0, 0]),
        refused(lambda: x["a"]),
        refused(lambda: x[1.0]),
        refused(lambda: x[torch.ones(2, device=device)]),
        refused(lambda: x[mask[:2]]),
        refused(lambda: x[mask[:, :3]]),
        refused(lambda: x[torch.tensor([1, 0], device=device), torch.tensor([1, 0, 2], device=device)]),
        refused(lambda: x[..., ...]),
        refused(lambda: x[mask, 0]),
        refused(lambda: x[slice(0, 2, 0)]),
        refused(lambda: torch.tensor(3, device=device)[0]),
        refused(lambda: x.select(2, 0)),
        refused(lambda: x.narrow(0, 2, 3)),
        refused(lambda: x[[[0, 1], [1]]]),
        refused(lambda: iter(torch.tensor(1, device=device))),
        refused(lambda: len(torch.tensor(1, device=device))),
        refused(lambda: x.index_select(0, torch.ones(1, device=device))),
        refused(lambda: x.index_select(3, torch.tensor([0], device=device))),
    )


@program()
def out_of_range(device: str) -> Any:
    x, far = count(device, 3, 4), torch.tensor([7], device=device)
    return [
        refused(call)[:10]
        for call in (
            lambda: x[far].cpu(),
            lambda: x.index_select(0, far).cpu(),
            lambda: x.gather(0, far[None]).cpu(),
            lambda: x.take(far * 9).cpu(),
            lambda: x.clone().index_add_(0, far, x[:1]).cpu(),
        )
    ]


@program()
def written(device: str, wrap: Wrap) -> Any:
    def write(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0] = 9
        x[:, 1] = torch.tensor([1.5, 2.5, 3.5], device=x.device)
        x[x > 8] = -1
        x[i] += 5
        x[i, 0] = x[0, 0]
        x[..., -1] *= 2
        x[None, 2] = 3
        x[1:, ::2] = x[1:, ::2].flip(1)
        return x

    return wrap(write)(count(device, 3, 4), torch.tensor([2, 0], device=device))


@program()
def written_in_other_forms(device: str) -> Any:
    x = count(device, 3, 4)
    i = torch.tensor([0, 2, 0], device=device)
    mask = x > 5
    a, b, c, d, e = (x.clone() for _ in range(5))
    a.index_put_((i, i), torch.ones(3, device=device), accumulate=True)
    b[mask] = torch.arange(6.0, device=device)
    c[mask.cpu()] = 0.5
    c[i.cpu()] = -1
    d[:, torch.tensor(1)] = 7
    e[0, 0] = True
    e[1, 1] = torch.tensor(5, dtype=torch.int16)
    e[()] += 1
    e[2] = torch.tensor(2.5)
    return a, b, c, d, e


@program()
def writing_refused(device: str) -> Any:
    x = count(device, 3, 4)
    i = torch.tensor([0, 2], device=device)
    return (
        refused(lambda: x.__setitem__(0, torch.ones(3, device=device))),
        refused(lambda: x.__setitem__(x > 5, torch.ones(2, device=device)))[:12],
        refused(lambda: x.__setitem__(i, torch.ones(3, 4, device=device))),
        refused(lambda: x.__setitem__(7, 1)),
        refused(lambda: x.__setitem__(i, torch.ones(2, 4, dtype=torch.float64, device=device))),
        refused(lambda: x.index_copy_(0, i, torch.ones(3, 4, device=device))),
        refused(lambda: x.index_add_(0, i, x[:2].double())),
        refused(lambda: x.scatter_(0, i[None], x[:1].int())),
        refused(lambda: x.scatter_(0, i.float()[None], 1.0)),
        refused(lambda: x.masked_fill_(i, 1)),
        refused(lambda: x.masked_fill_(x > 1, torch.ones(2, device=device))),
        refused(lambda: x.masked_scatter_(x > 1, x[0].double())),
        refused(lambda: x.index_fill_(0, i, torch.ones(2, device=device))),
        refused(lambda: x.put_(i, torch.ones(3, device=device))),
        refused(lambda: x.scatter_reduce_(0, i[None], x, "nothing")),
        refused(lambda: x.gather(0, i)),
        refused(lambda: x.take_along_dim(i, 0)),
        refused(lambda: x.__setitem__(0, "a")),
    )


@program()
def gathered_and_scattered(device: str, wrap: Wrap) -> Any:
    x, i = count(device, 3, 4), torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2]]).to(device)
    return wrap(
        lambda x, i: (
            x.gather(0, i),
            x.scatter(0, i, -1.0),
            x.scatter_add(0, i, x[:2]),
            x.scatter_reduce(0, i, x[1:], "amax", include_self=False),
            x.scatter_reduce(0, i, x[1:], "prod"),
            x.scatter_reduce(0, i, x[1:], "mean"),
            x.take(i),
            x.take_along_dim(i, 0),
            x.index_add(1, i[0], x, alpha=2),
            x.index_copy(0, i[0, 1:3], x[:2]),
            x.index_fill(1, i[1], 3.0),
            x.put(i, x[:2], accumulate=True),
            x.masked_select(x > 3).sum(),
            torch.where(x > 3, x, 0),
        )
    )(x, i)


@program()
def searched(device: str) -> Any:
    x = torch.tensor([[0, 3, 0], [1, 0, 1]], device=device)
    return (
        x.nonzero(),
        x.nonzero(as_tuple=True),
        torch.where(x == 0),
        x.argwhere(),
        x.unique(return_counts=True),
        x.unique(dim=1, return_inverse=True),
        torch.unique_consecutive(x),
        x.bool().nonzero(),
        torch.nonzero_static(x, size=5),
        x[0, 0].nonzero(),
        x.count_nonzero(1),
        torch.isin(x, torch.tensor([1, 3], device=device)),
        torch.searchsorted(count(device, 4), count(device, 2, 2) + 0.5),
        torch.bucketize(x, torch.tensor([0, 2], device=device), right=True),
    )


@program()
def views(device: str) -> Any:
    x = count(device, 2, 3, 4)
    made = [
        x.view(6, 4),
        x.view(-1),
        x.t() if x.dim() < 3 else x.mT,
        x.permute(2, 0, 1),
        x.unfold(2, 2, 1),
        x.diagonal(0, 1, 2),
        x.expand(5, 2, 3, 4),
        x.squeeze(),
        x.unsqueeze(-1),
        x.movedim(0, 2),
        x.swapaxes(0, 1),
        x.as_strided((2, 2), (1, 3), 2),
        x.unflatten(2, (2, 2)),
        x.flatten(1),
        x.view(torch.int32),
        x.view_as(x),
        x.reshape(3, 8),
        *x.split(1),
        *x.tensor_split(2, 2),
        *x.hsplit(3),
        x.narrow(2, 1, 2),
        x.select(0, -1),
        torch.atleast_3d(x[0]),
        x.real,
        x.detach(),
        x.data,
        x.adjoint(),
        x.H if x.dim() == 2 else x,
    ]
    return (
        made,
        [
            (v._base is x, v.storage_offset(), v.data_ptr() - x.data_ptr(), v.is_contiguous(), v._is_view())
            for v in made
        ],
        refused(lambda: x.mT.view(-1)),
        refused(lambda: x.view(5)),
        refused(lambda: x.T),
        refused(lambda: x.as_strided((9, 9), (9, 9))),
        refused(lambda: x.view(torch.float64).view(torch.int8)[..., :3].view(torch.int16)),
        refused(lambda: x.expand(3, 3, 4)),
        refused(lambda: x.permute(0, 0, 1)),
        refused(lambda: x.unflatten(0, (3,))),
    )


@program()
def overlaps_refused(device: str) -> Any:
    x = count(device, 5)
    wide = x[:1].expand(5)
    return (
        refused(lambda: wide.add_(1)),
        refused(lambda: x[1:].add_(x[:-1])),
        refused(lambda: torch.add(x[:-1], 1, out=x[1:])),
        refused(lambda: x[1:].copy_(x[:-1])),
        refused(lambda: torch.cumsum(x, 0, out=wide)),
        refused(lambda: wide.copy_(x)),
        refused(lambda: wide.zero_()),
        refused(lambda: wide.index_add_(0, torch.tensor([0], device=device), x[:1])),
        refused(lambda: x.resize_(3).unsqueeze_(0).t_().squeeze_()),
        x,
    )


@program()
def out_arguments(device: str) -> Any:
    x = count(device, 3, 4)
    small, wide, ints = (
        torch.empty(2, device=device),
        torch.empty(3, 4, dtype=torch.float64, device=device),
        torch.empty(3, 4, dtype=torch.int64, device=device),
    )
    return (
        torch.add(x, 1, out=torch.empty(0, device=device)),
        torch.mul(x, 2, out=wide),
        torch.sum(x, 1, out=small),
        torch.sin(x, out=torch.empty(4, 3, device=device).t()),
        refused(lambda: torch.sin(x, out=ints)),
        refused(lambda: torch.add(x, x, out=torch.empty(3, 4))) if device != "cpu" else "RuntimeError: x",
        torch.max(x, 1, out=(small, torch.empty(0, dtype=torch.int64, device=device))),
        torch.matmul(x, x.t(), out=small),
        refused(lambda: torch.max(x, 1, out=(torch.empty(3, device=device), torch.empty(3, device=device)))),
        torch.cat([x, x], out=torch.empty(0, device=device)),
        refused(lambda: torch.cat([x, x], out=torch.empty(0, dtype=torch.int32, device=device))),
        refused(lambda: torch.add(randn(device, 3, grad=True), 1, out=small)),
        torch.arange(5, out=ints.view(-1)[:5]),
        refused(lambda: torch.sum(x, out=ints)),
        torch.nonzero(x > 9, out=torch.empty(0, dtype=torch.int64, device=device)),
        torch.randperm(1, out=torch.empty(0, dtype=torch.int64, device=device)),
    )[:5]


@program()
def in_place(device: str, wrap: Wrap) -> Any:
    def change(x: torch.Tensor) -> Any:
        y = x.clone()
        y.add_(1).mul_(y).clamp_(max=50)[0].neg_()
        y.t_().unsqueeze_(0).transpose_(0, 1)
        z = y.clone().squeeze_()
        return y, z, x.clone().sub_(x, alpha=0.5).round_(decimals=1)

    return wrap(change)(count(device, 3, 4))


@program()
def in_place_refused(device: str) -> Any:
    x, i = count(device, 3, 4), count(device, 3, 4, dtype=torch.int64)
    return (
        refused(lambda: i.add_(0.5)),
        refused(lambda: i.div_(2)),
        refused(lambda: i.sqrt_()),
        refused(lambda: x.add_(x * 1j)),
        refused(lambda: x.add_(torch.ones(5, device=device))),
        refused(lambda: x.unsqueeze_(9)),
        refused(lambda: x[0].add_(x)),
        refused(lambda: (x > 1).add_(1)),
        refused(lambda: x.set_(i)),
        refused(lambda: x.resize_(-1)),
        refused(lambda: x.eq_(x)),
        refused(lambda: x.bitwise_and_(1)),
        refused(lambda: i.clamp_(0.5)),
        refused(lambda: x.t().resize_as_(x).shape),
        refused(lambda: x.copy_(torch.ones(2, device=device))),
        x.eq_(x).dtype,
        i.pow_(2).dtype,
        refused(lambda: i.pow_(-1)),
        refused(lambda: x.swap()),
        refused(lambda: i.bernoulli_(2.0)),
        refused(lambda: x.uniform_(3, 1)),
        refused(lambda: x.normal_(0, -1)),
        refused(lambda: i.random_(5, 1)),
        refused(lambda: x.exponential_(-1)),
        refused(lambda: i.normal_()),
    )


@program()
def wrong_operands(device: str) -> Any:
    x, w = count(device, 3, 4), count(device, 5, 6)
    return [
        refused(call)
        for call in (
            lambda: x + w,
            lambda: x @ w,
            lambda: torch.bmm(x, w),
            lambda: torch.cat([x, w]),
            lambda: torch.stack([x, w]),
            lambda: torch.dot(x, x),
            lambda: x.sum(5),
            lambda: x.reshape(7),
            lambda: torch.mm(x, x.long().t()),
            lambda: x.softmax(3),
            lambda: torch.einsum("ij,jk", x, w),
            lambda: torch.einsum("i", x),
            lambda: x.max(2),
            lambda: x[:0].max(),
            lambda: x[:0].argmax(),
            lambda: x[:, :0].amax(1),
            lambda: x.topk(9),
            lambda: x.kthvalue(9),
            lambda: x.median(4),
            lambda: torch.quantile(x, 2.0),
            lambda: torch.quantile(x.long(), 0.5),
            lambda: x.flip(0, 0),
            lambda: x.repeat(2),
            lambda: torch.tril(x[0]),
            lambda: torch.trace(x[0]),
            lambda: torch.linspace(0, 1, -1, device=device),
            lambda: torch.arange(0, 5, -1, device=device),
            lambda: torch.full((2,), "a", device=device),
            lambda: torch.zeros(-1, device=device),
            lambda: torch.eye(-1, device=device),
            lambda: torch.randperm(-1, device=device),
            lambda: torch.multinomial(-x, 1),
            lambda: torch.multinomial(x, 9),
            lambda: x.item(),
            lambda: bool(x),
            lambda: int(x[0]),
            lambda: float(x[:0]),
            lambda: x.bool() - x.bool(),
            lambda: -(x > 1),
            lambda: x << 1,
            lambda: ~x,
            lambda: x.long() / 0,
            lambda: x.long() // 0,
            lambda: x.long() % 0,
            lambda: torch.logical_not(x, out=3),
            lambda: torch.cross(x, x),
            lambda: torch.cdist(x, w),
            lambda: x.cumsum(7),
            lambda: x.chunk(0),
            lambda: x.split(-1),
            lambda: x.split([1, 1]),
            lambda: torch.complex(x, x.double()),
            lambda: torch.polar(x, x.long()),
            lambda: x.new_tensor("a"),
            lambda: torch.tensor([[1], [2, 3]], device=device),
            lambda: x.to("nowhere"),
            lambda: x.type("torch.NoTensor"),
            lambda: torch.lerp(x, w, 0.5),
            lambda: torch.lerp(x, x.double(), 0.5),
            lambda: torch.where(x, x, x),
            lambda: torch.clamp(x),
            lambda: x.renorm(2, 9, 1),
            lambda: torch.histc(x, 5, 3, 1),
            lambda: torch.bincount(x),
            lambda: torch.bincount(-x.long().flatten()),
        )
    ]
