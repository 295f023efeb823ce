# SPDX-License-Identifier: Apache-2.0
"""What users write around torch.compile: breaks, closures, sizes that data tells, higher-order operators, export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program

_CALLS = [0]


@program()
def breaks(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        print("between", y.shape)
        if y.sum() > 0:
            return y * 2
        return y - 1

    g = wrap(f)
    return g(count(device, 4)), g(-count(device, 4)), g(count(device, 5))


@program()
def items(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Any:
        n = x.argmax().item()
        return x * n, n, x.tolist(), float(x.sum())

    return wrap(f)(count(device, 4))


@program()
def sizes_of_data(device: str, wrap: Wrap) -> Any:
    g = wrap(lambda x: (x[x > 1], x.nonzero(), x[x > 1].sum(), torch.unique(x), torch.repeat_interleave(x, x.long())))
    return g(count(device, 4)), g(count(device, 6) % 3), g(count(device, 1))


@program()
def closures(device: str, wrap: Wrap) -> Any:
    scale = torch.tensor(2.0, device=device)
    factor = [3]

    def f(x: Tensor) -> Tensor:
        return x * scale * factor[0]

    g = wrap(f)
    first = g(count(device, 3))
    factor[0] = 5
    scale.fill_(10)
    return first, g(count(device, 3))


@program()
def globals_written(device: str, wrap: Wrap) -> Any:
    _CALLS[0] = 0

    def f(x: Tensor) -> Tensor:
        _CALLS[0] += 1
        return x + _CALLS[0]

    g = wrap(f)
    return [g(count(device, 2)) for _ in range(3)], _CALLS[0]


@program()
def inputs_written(device: str, wrap: Wrap) -> Any:
    x, kept = count(device, 4), {"a": count(device, 2)}

    def f(x: Tensor, kept: dict[str, Any]) -> Tensor:
        x[1:] += 1
        kept["b"] = x * 2
        kept["a"].mul_(3)
        return x.view(2, 2)

    out = wrap(f)(x, kept)
    out.add_(1)
    return x, kept, out


@program()
def modules_written(device: str, wrap: Wrap) -> Any:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.total += x.sum(0)
            return x * self.calls + self.total

    model = Counting().to(device)
    g = wrap(model)
    return [g(count(device, 3, 2)) for _ in range(3)], model.calls, model.total


@program()
def many_sizes(device: str, wrap: Wrap) -> Any:
    g = wrap(lambda x: (x @ x.t()).softmax(0).sum(1) + x.shape[0])
    return [g(count(device, n, 3) / 9) for n in (2, 3, 5, 1, 8)]


@program()
def exceptions_inside(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError("three")
        return x + 1

    return refused(lambda: wrap(f)(count(device, 3))), wrap(f)(count(device, 2))


@program()
def caught_inside(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Tensor:
        try:
            return {"a": x}["b"]
        except KeyError:
            return x.view(2, 2)

    return wrap(f)(count(device, 4))


@program()
def python_inside(device: str, wrap: Wrap) -> Any:
    from collections import OrderedDict, namedtuple

    pair = namedtuple("pair", "a b")

    def f(x: Tensor, *rest: Tensor, flag: bool = True, **more: Any) -> Any:
        found = {str(i): x[i] for i in range(len(x))}
        return (
            pair(x, [*rest]),
            OrderedDict(found),
            (flag, None, "text", 3),
            sum(y.sum() for y in rest),
            sorted(more),
            [*zip(x.unbind(), rest, strict=False)][:1],
            x.shape,
            x.device,
            x.dtype,
            more["k"] * 2,
        )

    return wrap(f)(count(device, 2), count(device, 2), flag=False, k=count(device, 1))


@program()
def backward_through_breaks(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).relu()
        torch._dynamo.graph_break()
        return (y * w.sum()).sum()

    x, w = randn(device, 3, 3, grad=True), randn(device, 3, 3, grad=True)
    loss = wrap(f)(x, w)
    loss.backward()
    return loss, x.grad, w.grad


@program()
def double_backward_refused(device: str) -> Any:
    x = randn(device, 3, grad=True)
    f = torch.compile(lambda x: (x**3).sum(), **({"backend": "aot_eager"} if device == "cpu" else {}))
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    return refused(lambda: g.sum().backward())


@program()
def whole_training_step(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    g = wrap(step)
    x, y = randn(device, 6, 4), randn(device, 6, 1)
    return [g(x, y).detach() for _ in range(3)]


@program()
def modes_inside(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = x * 3
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            w = x[None] @ x[:, None]
        return y, z, w

    return wrap(f)(randn(device, 3, grad=True))


@program()
def views_returned(device: str, wrap: Wrap) -> Any:
    x = count(device, 2, 3)
    a, b, c = wrap(lambda x: (x.t(), x[0], x))(x)
    a.add_(1)
    return x, b, c is x, a._base is x


@program()
def random_inside(device: str, wrap: Wrap) -> Any:
    import random

    def f(x: Tensor) -> Tensor:
        return x * random.randint(2, 9) + torch.rand(3, device="cpu").to(x.device)

    return f(count(device, 3)).shape


@program(draws=True)
def drawn_inside(device: str, wrap: Wrap) -> Any:
    g = wrap(
        lambda x: (
            torch.rand_like(x),
            torch.randn(3, device=x.device),
            nn.functional.dropout(x, 0.5),
            torch.randint(3, (2,), device=x.device),
            torch.randperm(4, device=x.device),
            torch.bernoulli(x * 0 + 0.5),
            x.clone().uniform_(),
        )
    )
    first, second = g(count(device, 8)), g(count(device, 8))
    return first, [bool((a == b).all()) for a, b in zip(first[:2], second[:2], strict=True)]


@program()
def conditions(device: str, wrap: Wrap) -> Any:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 4, lambda x: x.sin(), lambda x: x * 2, (x,))

    g = wrap(f)
    return g(count(device, 3)), g(count(device, 5))


@program()
def conditions_with_gradients(device: str, wrap: Wrap) -> Any:
    x = randn(device, 4, grad=True)
    y = wrap(lambda x: torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: -x, (x,)))(x)
    y.sum().backward()
    return y, x.grad


@program()
def loops(device: str, wrap: Wrap) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def f(i: Tensor, x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x))

    return wrap(f)(torch.tensor(0, device=device), count(device, 3))


@program()
def scans(device: str, wrap: Wrap) -> Any:
    from torch._higher_order_ops import scan

    return wrap(lambda c, x: scan(lambda c, x: (c + x, c * x), c, x))(
        torch.zeros(2, device=device), count(device, 4, 2)
    )


@program()
def associative_scans(device: str, wrap: Wrap) -> Any:
    from torch._higher_order_ops import associative_scan

    return wrap(lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"))(count(device, 5, 2))


@program()
def maps(device: str, wrap: Wrap) -> Any:
    from torch._higher_order_ops.map import map as mapped

    return wrap(lambda x, y: mapped(lambda x, y: x * y + 1, x, y))(count(device, 3, 2), count(device, 2))


@program()
def inner_compiled(device: str, wrap: Wrap) -> Any:
    inner = wrap(lambda x: x.cos())

    @torch.compiler.disable
    def outside(x: Tensor) -> Tensor:
        return x + 1

    return wrap(lambda x: inner(outside(x * 2)))(count(device, 3)), torch.compiler.is_compiling()


@program()
def custom_operators(device: str, wrap: Wrap) -> Any:
    with torch.library._scoped_library("programs", "FRAGMENT"):

        @torch.library.custom_op("programs::twice", mutates_args=())
        def twice(x: Tensor) -> Tensor:
            return x * 2

        twice.register_fake(lambda x: torch.empty_like(x))
        twice.register_autograd(lambda ctx, g: g * 2)
        x = randn(device, 3, grad=True)
        y = wrap(lambda x: twice(x).sin())(x)
        y.sum().backward()
        return y, x.grad


@program()
def exported(device: str) -> Any:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
    n = torch.export.Dim("n", min=2, max=16)
    made = torch.export.export(model, (randn(device, 4, 3),), dynamic_shapes=({0: n},))
    lowered = made.run_decompositions()
    return (
        made.module()(count(device, 5, 3)),
        lowered.module()(count(device, 2, 3)),
        [str(node.target) for node in lowered.graph.nodes],
        refused(lambda: made.module()(count(device, 5, 4)))[:60],
    )


@program()
def exported_and_kept(device: str) -> Any:
    import io

    made = torch.export.export(nn.Linear(3, 2).to(device), (randn(device, 4, 3),))
    file = io.BytesIO()
    torch.export.save(made, file)
    file.seek(0)
    return torch.export.load(file).module()(count(device, 4, 3)).shape, [
        str(t.device) for t in made.state_dict.values()
    ]


@program()
def export_refused(device: str) -> Any:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    return refused(lambda: torch.export.export(Branching(), (count(device, 3),)))[:50]


@program()
def traced_graphs(device: str) -> Any:
    from torch import fx

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu() + x

    torch.manual_seed(0)
    graph = fx.symbolic_trace(Model()).to(device)
    return graph.code, graph(count(device, 2, 3)), fx.Interpreter(graph).run(count(device, 2, 3))


@program()
def options_of_compile(device: str, wrap: Wrap) -> Any:
    f = lambda x: (x * 2).sum(0) + x.amax(0)  # noqa: E731
    x = count(device, 4, 3)
    return wrap(f, fullgraph=True)(x), wrap(f, dynamic=True)(x), wrap(f, dynamic=False)(x)


@program()
def strided_results(device: str, wrap: Wrap) -> Any:
    g = wrap(
        lambda x: (
            x.t() + 1,
            (x * 2).permute(1, 0).contiguous(),
            x[:, ::2].clone(),
            x.t().clone(memory_format=torch.preserve_format),
            x.expand(2, 3, 4) + 1,
            torch.stack([x.t()]),
            torch.stack([x.t(), x.t()], 1),
            x.t().flatten(),
            x.new_empty(0),
            torch.zeros_like(x.t()),
        )
    )
    return g(count(device, 3, 4))
