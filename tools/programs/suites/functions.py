# SPDX-License-Identifier: Apache-2.0
"""torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from tools.programs.given import randn, refused
from tools.programs.registry import Wrap, program


@program()
def vmap_of_functions(device: str, wrap: Wrap) -> Any:
    x, y = randn(device, 5, 3), randn(device, 5, 3)
    return (
        wrap(vmap(torch.dot))(x, y),
        wrap(vmap(lambda a: a.softmax(0)))(x),
        wrap(vmap(torch.outer, (0, None)))(x, y[0]),
        wrap(vmap(vmap(lambda a: a.sin() * 2)))(x),
    )


@program()
def vmap_refuses(device: str) -> Any:
    x = randn(device, 5, 3)
    return [
        refused(lambda: vmap(lambda a: a.sum().item())(x)),
        refused(lambda: vmap(lambda a: a if a.sum() > 0 else -a)(x)),
        refused(lambda: vmap(lambda a: a.nonzero())(x)),
        refused(lambda: vmap(lambda a: torch.rand_like(a))(x)),
        refused(lambda: vmap(lambda a: a, in_dims=3)(x)),
        refused(lambda: vmap(lambda a, b: a)(x, x[:2])),
        refused(lambda: vmap(lambda a: 3)(x)),
        refused(lambda: vmap(lambda a: x[0].add_(a))(x)),
    ]


@program(draws=True)
def vmap_randomness(device: str) -> Any:
    x = randn(device, 5, 3)
    same = vmap(lambda a: a * 0 + torch.rand_like(a), randomness="same")(x)
    other = vmap(lambda a: torch.rand_like(a), randomness="different")(x)
    return same, bool((same[0] == same[1]).all()), bool((other[0] == other[1]).all())


@program()
def vmap_of_modules(device: str) -> Any:
    torch.manual_seed(1)
    models = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(device) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = models[0].to("meta")
    x = randn(device, 5, 4)
    call = lambda p, b, x: functional_call(base, (p, b), (x,))  # noqa: E731
    return vmap(call, (0, 0, None))(params, buffers, x), vmap(lambda p, b: grad(lambda p: call(p, b, x).sum())(p))(
        params, buffers
    )


@program()
def per_sample_gradients(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3)).to(device)
    params = {k: v.detach() for k, v in model.named_parameters()}
    x, y = randn(device, 4, 1, 4, 4), torch.tensor([0, 1, 2, 0], device=device)

    def loss(p: Any, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, p, (x[None],)), y[None])

    return wrap(vmap(grad(loss), (None, 0, 0)))(params, x, y)


@program()
def jacobians(device: str, wrap: Wrap) -> Any:
    x = randn(device, 4)
    f = lambda x: x.exp() * x.roll(1)  # noqa: E731
    return wrap(jacrev(f))(x), wrap(jacfwd(f))(x), wrap(hessian(lambda x: f(x).sum()))(x), jacrev(f, chunk_size=2)(x)


@program()
def products_with_jacobians(device: str, wrap: Wrap) -> Any:
    x, v = randn(device, 3, 3), randn(device, 3, 3)
    out, back = vjp(lambda x: x @ x, x)
    out2, forward = linearize(lambda x: x.sin() @ x, x)
    return out, back(v), wrap(lambda x, v: jvp(lambda x: x.softmax(0), (x,), (v,)))(x, v), out2, forward(v)


@program()
def grad_with_aux(device: str) -> Any:
    x = randn(device, 3)
    return (
        grad(lambda x: ((x**2).sum(), {"aux": x + 1}), has_aux=True)(x),
        grad_and_value(lambda x, y: (x * y).sum(), (0, 1))(x, x),
        refused(lambda: grad(lambda x: x)(x)),
        refused(lambda: grad(lambda x: x.sum(), 4)(x)),
        grad(grad(lambda x: x.sin().prod()))(x[0]),
    )


@program()
def functionalized(device: str) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)
        y.t().mul_(2)
        return y

    graph = make_fx(torch.func.functionalize(f, remove="mutations_and_views"))(randn(device, 3, 3))
    return graph.code, graph(torch.ones(3, 3, device=device))


@program()
def make_fx_symbolic(device: str) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: x.view(-1, x.shape[0]).sum(0) * x.shape[1], tracing_mode="symbolic")(randn(device, 3, 4))
    return graph.code, graph(torch.ones(5, 2, device=device))


@program()
def maml(device: str) -> Any:
    w = randn(device, 3)
    x = randn(device, 6, 3)

    def inner(w: Tensor, x: Tensor) -> Tensor:
        return w - 0.1 * grad(lambda w: ((x @ w) ** 2).mean())(w)

    return grad(lambda w: vmap(lambda x: (x @ inner(w, x)).square().mean())(x.view(2, 3, 3)).sum())(w)


@program()
def functional_call_ties(device: str) -> Any:
    model = nn.Module()
    model.a = nn.Linear(3, 3, bias=False)
    model.b = nn.Linear(3, 3, bias=False)
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(model.a(x))
    model.to(device)
    x = randn(device, 2, 3)
    w = torch.eye(3, device=device)
    return (
        functional_call(model, {"a.weight": w}, (x,)),
        refused(lambda: functional_call(model, {"c": w}, (x,), strict=True)),
        model.b.weight is model.a.weight,
    )
