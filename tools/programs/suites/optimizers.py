# SPDX-License-Identifier: Apache-2.0
"""torch.optim, schedulers and scaled losses."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as schedules

from tools.programs.given import randn, refused
from tools.programs.registry import Wrap, program

_KINDS: list[tuple[Any, dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {}),
    (optim.Adagrad, {"lr_decay": 0.1}),
    (optim.Adadelta, {}),
    (optim.Adamax, {}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.RMSprop, {"centered": True}),
    (optim.Rprop, {}),
    (optim.ASGD, {"t0": 1}),
    (optim.Adafactor, {}),
    (optim.Adam, {"maximize": True, "weight_decay": 0.1}),
]


def _run(device: str, kind: Any, options: dict[str, Any], wrap: Wrap, steps: int = 3) -> Any:
    torch.manual_seed(1)
    w, b = randn(device, 3, 2, grad=True), randn(device, 2, grad=True)
    x = randn(device, 5, 3)
    optimizer = kind([w, b], **options)
    step = wrap(optimizer.step)
    for _ in range(steps):
        optimizer.zero_grad()
        (x @ w + b).square().mean().backward()
        step()
    return w, b, optimizer.state_dict()["state"]


@program(terms=1000)
def each_one_by_one(device: str) -> Any:
    return [_run(device, kind, {**options, "foreach": False}, lambda f: f) for kind, options in _KINDS]


@program(terms=1000)
def each_in_lists(device: str) -> Any:
    return [_run(device, kind, {**options, "foreach": True}, lambda f: f) for kind, options in _KINDS]


@program(terms=1000)
def each_as_it_is(device: str) -> Any:
    return [_run(device, kind, options, lambda f: f) for kind, options in _KINDS]


@program(terms=1000)
def fused(device: str, wrap: Wrap) -> Any:
    return [
        _run(device, kind, {"fused": True, "lr": 0.1}, wrap)
        for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad)
    ]


@program(terms=1000)
def compiled_steps(device: str, wrap: Wrap) -> Any:
    return _run(device, optim.AdamW, {"lr": torch.tensor(0.01)}, wrap), _run(
        device, optim.SGD, {"lr": 0.1, "momentum": 0.5}, wrap
    )


@program(terms=10000)
def newton(device: str) -> Any:
    w = torch.zeros(3, device=device, requires_grad=True)
    x, y = randn(device, 8, 3), randn(device, 8)
    found = []
    for search in (None, "strong_wolfe"):
        optimizer = optim.LBFGS([w], max_iter=4, line_search_fn=search)

        def closure() -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = (x @ w - y).square().mean()
            loss.backward()
            return loss

        found.append((optimizer.step(closure), w.detach().clone()))
    return found


@program()
def sparse_gradients(device: str) -> Any:
    table = nn.Embedding(6, 2, sparse=True).to(device)
    optimizer = optim.SparseAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 3, 1], device=device)).sum().backward()
        optimizer.step()
    sgd = optim.SGD(table.parameters(), 0.1)
    sgd.step()
    return table.weight, table.weight.grad, refused(lambda: optim.Adam(table.parameters()).step())


@program()
def muon(device: str) -> Any:
    w = randn(device, 4, 4, grad=True)
    optimizer = optim.Muon([w])
    w.square().sum().backward()
    optimizer.step()
    return w.shape, refused(lambda: optim.Muon([randn(device, 3, grad=True)]))


@program()
def refused_optimizers(device: str) -> Any:
    w = randn(device, 3, grad=True)
    o = optim.SGD([w], 0.1)
    return (
        refused(lambda: optim.SGD([], 0.1)),
        refused(lambda: optim.SGD([w * 2], 0.1)),
        refused(lambda: optim.Adam([w], lr=-1)),
        refused(lambda: optim.Adam(w)),
        refused(lambda: optim.SGD([w], 0.1, nesterov=True)),
        refused(lambda: o.add_param_group({"params": [w]})),
        refused(lambda: optim.Adam([w], foreach=True, fused=True)),
        refused(lambda: o.load_state_dict(optim.SGD([w, randn(device, 2, grad=True)], 0.1).state_dict())),
        refused(lambda: optim.LBFGS([w]).step()),
        refused(lambda: optim.LBFGS([{"params": [w]}, {"params": [randn(device, 1, grad=True)]}])),
        repr(o),
        refused(lambda: optim.Adam([w], lr=torch.tensor([0.1, 0.2]))),
    )


@program()
def state_kept(device: str) -> Any:
    w = randn(device, 3, grad=True)
    o = optim.Adam([{"params": [w], "lr": 0.5}], amsgrad=True)
    (w**2).sum().backward()
    o.step()
    o.register_step_pre_hook(lambda *a: None)
    state = copy.deepcopy(o.state_dict())
    v = w.detach().clone().requires_grad_()
    p = optim.Adam([v], amsgrad=True)
    p.load_state_dict({**state, "state": {0: {k: x.cpu().clone() for k, x in state["state"][0].items()}}})
    v.grad = w.grad.clone()
    o.step()
    p.step()
    return w, v, state, [str(x.device) for x in p.state[v].values()]


@program()
def schedulers(device: str) -> Any:
    w = randn(device, 3, grad=True)

    def rates(make: Any) -> list[float]:
        o = optim.SGD([w], 0.1, momentum=0.9)
        s = make(o)
        found = []
        for _ in range(5):
            o.step()
            s.step(*([1.0] if isinstance(s, schedules.ReduceLROnPlateau) else []))
            found.append(o.param_groups[0]["lr"])
        return found

    makers = [
        lambda o: schedules.StepLR(o, 2),
        lambda o: schedules.CosineAnnealingLR(o, 4),
        lambda o: schedules.OneCycleLR(o, 0.5, 10),
        lambda o: schedules.ExponentialLR(o, 0.9),
        lambda o: schedules.ReduceLROnPlateau(o, patience=0),
        lambda o: schedules.CyclicLR(o, 0.01, 0.1, 2),
        lambda o: schedules.LambdaLR(o, lambda e: 0.5**e),
        lambda o: schedules.SequentialLR(o, [schedules.ConstantLR(o), schedules.LinearLR(o)], [2]),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
        lambda o: schedules.PolynomialLR(o),
    ]
    o = optim.SGD([w], 0.1)
    schedules.StepLR(o, 1).step()  # warns of the order
    return [rates(make) for make in makers]


@program()
def tensor_rates(device: str) -> Any:
    w = randn(device, 3, grad=True)
    o = optim.Adam([w], lr=torch.tensor(0.1, device=device), capturable=device != "cpu")
    w.grad = torch.ones_like(w)
    o.step()
    s = schedules.StepLR(o, 1)
    s.step()
    return w, o.param_groups[0]["lr"]


@program(terms=100)
def scaled(device: str) -> Any:
    w = randn(device, 3, grad=True)
    o = optim.SGD([w], 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=1)
    found = []
    for factor in (1.0, float("inf"), 1.0):
        o.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.unscale_(o)
        found.append(w.grad.clone())
        scaler.step(o)
        scaler.update()
        found.append(scaler.get_scale())
    return (
        found,
        w,
        scaler.state_dict(),
        refused(lambda: (scaler.scale(w.sum()), scaler.unscale_(o), scaler.unscale_(o))),
        refused(lambda: torch.amp.GradScaler(device).update()),
    )


@program()
def closures_and_hooks(device: str) -> Any:
    w = randn(device, 3, grad=True)
    o = optim.Adam([w])
    seen: list[str] = []
    o.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))
    o.register_state_dict_post_hook(lambda opt, state: seen.append("state"))

    def closure() -> Tensor:
        o.zero_grad(set_to_none=False)
        loss = w.square().sum()
        loss.backward()
        return loss

    loss = o.step(closure)
    o.state_dict()
    return loss, w, seen


@program()
def in_backward(device: str) -> Any:
    ws = [randn(device, 3, grad=True) for _ in range(2)]
    each = {w: optim.SGD([w], 0.1) for w in ws}

    def stepped(w: Tensor) -> None:
        each[w].step()
        each[w].zero_grad()

    for w in ws:
        w.register_post_accumulate_grad_hook(stepped)
    (ws[0] * ws[1]).sum().backward()
    return ws, [w.grad is None for w in ws]


@program(terms=1000)
def accumulated_gradients(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(2)
    model = nn.Linear(4, 2).to(device)
    loss = wrap(lambda x: model(x).logsumexp(1).mean() / 2)
    for _ in range(2):
        loss(randn(device, 3, 4)).backward()
    return [p.grad for p in model.parameters()]
