# SPDX-License-Identifier: Apache-2.0
"""What leaves a tensor and comes back: files, copies, NumPy, DLPack, storages, TorchScript, loaders, threads."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import dlpack
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tools.programs.given import count, randn, refused
from tools.programs.registry import program


def _round(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@program(dtypes=(torch.complex64,))
def saved_and_loaded(device: str) -> Any:
    x = count(device, 3, 4)
    found = _round(
        {
            "x": x,
            "view": x[1:],
            "t": x.t(),
            "p": nn.Parameter(x.clone()),
            "n": 3,
            "s": x.to_sparse(),
            "z": x.to(torch.complex64),
            "b": x > 2,
            "e": x[:0],
        }
    )
    shared = found["x"].untyped_storage().data_ptr() == found["view"].untyped_storage().data_ptr()
    found["view"].zero_()
    return (
        found,
        shared,
        str(_round(x, map_location="cpu").device),
        _round(x.cpu(), map_location=device),
        _round(x, map_location={f"{device}:0": "cpu"}).device.type,
        _round(x, map_location=lambda storage, where: storage).device.type,
        _round(x, map_location=torch.device(device)),
        type(found["p"]).__name__,
        _round(x, map_location="meta").shape,
        _round(x, mmap=None),
    )


@program()
def loading_refused(device: str) -> Any:
    file = io.BytesIO()
    torch.save(count(device, 2), file)
    broken = io.BytesIO(file.getvalue()[:50])
    return (
        refused(lambda: torch.load(broken))[:40],
        refused(lambda: torch.save(count(device, 2), "/nowhere/x"))[:20],
    )


@program()
def pickled(device: str) -> Any:
    x = count(device, 2, 3)
    model = nn.Linear(3, 2).to(device)
    other = pickle.loads(pickle.dumps(model))
    return (
        pickle.loads(pickle.dumps(x)),
        pickle.loads(pickle.dumps(x.t())),
        other(x).shape,
        copy.deepcopy(x),
        copy.copy(x).data_ptr() == x.data_ptr(),
        refused(lambda: copy.deepcopy(randn(device, 2, grad=True) * 1)),
        pickle.loads(pickle.dumps(torch.device(device))),
        pickle.loads(pickle.dumps(x.to_sparse())),
        copy.deepcopy([x, x[0]]),
        copy.deepcopy(x.requires_grad_()),
    )


@program()
def checkpoints(device: str) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    (model(randn(device, 4, 3)) * count(device, 4, 3).cos()).sum().backward()
    optimizer.step()
    state = _round({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, weights_only=True)
    whole = _round(model, weights_only=False)
    return state, whole.state_dict(), refused(lambda: _round(model))[:60]


@program()
def numpy_out(device: str) -> Any:
    x = count(device, 2, 3)
    host = x.cpu().numpy()
    return (
        host.sum().item(),
        x.tolist(),
        np.asarray(x.cpu()).shape,
        x.numpy(force=True).tolist(),
        refused(lambda: x.bfloat16().cpu().numpy()),
        refused(lambda: x.requires_grad_(False).cpu().conj().numpy()),
        np.array(x[0, 0].item()).item(),
        refused(lambda: randn(device, 2, grad=True).cpu().numpy()),
        randn(device, 2, grad=True).numpy(force=True).shape,
        np.float32(2) * x[0, 0].item(),
        x.cpu().__array__().dtype.name,
        np.add(x.cpu(), 1).sum().item(),
        x.to_sparse().cpu().to_dense().numpy().tolist(),
    )


@program()
def numpy_in(device: str) -> Any:
    a = np.arange(6, dtype=np.float64).reshape(2, 3)
    return (
        torch.tensor(a, device=device),
        torch.from_numpy(a).to(device),
        torch.as_tensor(a, device=device),
        torch.tensor(np.float32(3), device=device),
        torch.tensor([np.int64(1), 2.5], device=device),
        torch.from_numpy(a[:, ::2].copy()).to(device),
        count(device, 3) * np.float64(2.0),
        count(device, 3)[np.array([0, 2])],
        count(device, 3)[np.int64(1)],
        refused(lambda: torch.from_numpy(a[::-1])),
        torch.tensor(a.T, device=device),
        refused(lambda: torch.tensor(np.array(["a"]), device=device)),
        torch.asarray(a, device=device),
        count(device, 2, 3) + torch.from_numpy(a).to(device),
        torch.tensor(np.array([True, False]), device=device),
        torch.tensor(a.astype(np.uint16), device=device).long(),
        torch.ones(np.int64(2), 3, device=device),
        torch.full((2,), np.float32(1.5), device=device),
    )


@program()
def exchanged(device: str) -> Any:
    x = count(device, 2, 3)
    y = dlpack.from_dlpack(x)
    y.add_(1)
    z = torch.from_dlpack(x.t())
    return (
        x,
        y.device,
        y.data_ptr() == x.data_ptr(),
        z,
        refused(lambda: dlpack.to_dlpack(randn(device, 2, grad=True))),
        refused(lambda: torch.from_dlpack(x.conj() if x.is_complex() else (x * 1j).conj())),
        torch.from_dlpack(x > 1),
        torch.from_dlpack(x[:0]).shape,
        refused(lambda: torch.from_dlpack(x.to_sparse())),
    )


@program()
def storages(device: str) -> Any:
    x = count(device, 2, 3)
    s = x.untyped_storage()
    y = torch.empty(0, device=device).set_(s, 1, (2,), (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = x.storage()
    c = s.clone()
    s.fill_(0)
    return (
        s.nbytes(),
        s.size(),
        len(s),
        str(s.device),
        y,
        c.nbytes(),
        x,
        typed.dtype,
        typed.size(),
        s.resizable(),
        s.cpu().nbytes(),
        s[0] if device == "cpu" else 0,
        s.is_shared() if device == "cpu" else False,
        s.data_ptr() == x.data_ptr(),
        y.storage_offset(),
        s.new().nbytes(),
        refused(lambda: torch.empty(0, device=device).set_(s, 100, (2,), (1,))),
        repr(typed)[:20],
        s.is_pinned(),
        s._cdata != 0,
    )


@program()
def resized(device: str) -> Any:
    x = count(device, 2, 3)
    base = x.clone()
    base.resize_(1, 2)
    grown = x.clone().resize_(2, 2)
    s = x.untyped_storage()
    view = x[0]
    s.resize_(0)
    s.resize_(24)
    return (
        base,
        grown,
        s.nbytes(),
        x.fill_(2),
        view,
        refused(lambda: x.requires_grad_().resize_(9)),
        x.detach().resize_as_(base.detach()).shape,
    )


@program()
def copied(device: str) -> Any:
    x = count(device, 3, 4)
    host = torch.empty(3, 4)
    host.copy_(x.t().reshape(3, 4))
    return (
        host,
        x.to("cpu", non_blocking=False),
        x.to(torch.float64),
        x.to(device) is x,
        x.to(device, copy=True) is x,
        x.cpu().to(x),
        x.to(x.half()),
        torch.empty(4, 3, device=device).t().copy_(x.cpu()),
        torch.zeros(3, 4, dtype=torch.int32, device=device).copy_(x.cpu()),
        x.t().cpu(),
        torch.empty(2, 3, 4, device=device).copy_(x.cpu()),
        x.type(torch.int64),
        x.contiguous() is x,
        x.clone(memory_format=torch.contiguous_format),
        x.short(),
        x.cpu().to(device).to(torch.bool),
        x.to(dtype=torch.int8, device="cpu"),
        refused(lambda: x.to(device, torch.float32, 3, 4, 5)),
    )


@program()
def scripted(device: str) -> Any:
    @torch.jit.script
    def f(x: Tensor, n: int) -> Tensor:
        for i in range(n):
            x = x / 2 if bool(x.sum() > 10) else x + i
        return x

    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).to(device)
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    again = torch.jit.load(file, map_location=device)
    x = count(device, 2, 3)
    traced = torch.jit.trace(lambda x: x.relu() * 2, (x,))
    frozen = torch.jit.freeze(model.eval())
    return (
        f(x, 3),
        f.code,
        model(x).shape,
        bool((again(x) == model(x)).all()),
        traced(x),
        frozen(x).shape,
        refused(lambda: f(x, x))[:60],
        torch.jit.fork(f, x, 1).wait() if hasattr(torch.jit, "fork") else None,
    )


@program()
def loaded_in_batches(device: str) -> Any:
    data = TensorDataset(count("cpu", 10, 2), torch.arange(10))
    loader = DataLoader(data, batch_size=4, pin_memory=device != "cpu")
    batches = [(x.to(device, non_blocking=True), y.to(device)) for x, y in loader]
    on_device = TensorDataset(count(device, 10, 2))
    shuffled = DataLoader(data, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))
    return (
        batches,
        [b for b in DataLoader(on_device, batch_size=3, drop_last=True)],
        [y for _, y in shuffled],
        default_collate([{"a": count(device, 2), "n": 1}] * 2),
        refused(lambda: default_collate([count(device, 2), count(device, 3)])),
        torch.utils.data.random_split(range(5), [2, 3], torch.Generator().manual_seed(1))[0].indices,
    )


@program()
def loaded_by_workers(device: str) -> Any:
    loader = DataLoader(TensorDataset(count("cpu", 6, 2)), batch_size=2, num_workers=1)
    return [x.to(device) for (x,) in loader]


@program()
def pinned(device: str) -> Any:
    x = torch.empty(4, pin_memory=True) if device != "cpu" else torch.empty(4)
    x.fill_(2)
    return (
        x.to(device, non_blocking=True),
        x.is_pinned() or device == "cpu",
        refused(lambda: torch.ones(2, device=device).pin_memory())
        if device != "cpu"
        else "RuntimeError: cannot pin 'torch.cpu.FloatTensor' only dense CPU tensors can be pinned",
        x.numpy().tolist(),
    )


@program()
def threads(device: str) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    def work(n: int) -> Tensor:
        x = count(device, n, n) / n
        return (x @ x).relu().sum(0)

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, range(1, 7)))


@program()
def lifetimes(device: str) -> Any:
    import gc
    import weakref

    x = count(device, 3)
    view, dead = x[1:], weakref.ref(x)
    dictionary = {x: 1}
    del dictionary, x
    gc.collect()
    return view, dead() is None, {count(device, 1): 2} != {}, sorted(vars(type("T", (), {"x": 1})()))


@program()
def attributes(device: str) -> Any:
    x = count(device, 3)
    x.mine = 5
    y = x.clone()
    return (
        x.mine,
        hasattr(y, "mine"),
        refused(lambda: setattr(x, "shape", 3)),
        refused(lambda: setattr(x, "dtype", 3)),
        refused(lambda: x.nothing),
        copy.deepcopy(x).mine,
        x.share_memory_().is_shared() if device == "cpu" else True,
        x.__repr__(),
        refused(lambda: torch.ones(2, device="nothing")),
        refused(lambda: torch.device("nothing")),
        torch.device(device).type,
        torch.device(device, 0).index,
        [x.device.type],
    )
