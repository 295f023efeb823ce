# SPDX-License-Identifier: Apache-2.0
"""Autograd: hooks, checkpoints, functions of users', derivatives of derivatives, and what it refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tools.programs.given import count, graph_of, randn, refused
from tools.programs.registry import Wrap, program


class Cube(torch.autograd.Function):
    """A function with a backward of its own that can be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class ScaleInPlace(torch.autograd.Function):
    """Writes to its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.mark_dirty(x)
        ctx.factor = factor
        return x.mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


class SetupContext(torch.autograd.Function):
    """In the style of torch.func, with a rule for vmap and forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        return ctx.saved_tensors[0].cos() * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return ctx.saved_tensors[0].cos() * tangent, None


class Bad(torch.autograd.Function):
    """Its gradient has another shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[:1]


@program()
def tensor_hooks(device: str) -> Any:
    x = randn(device, 3, 4, grad=True)
    seen: list[Any] = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.clone()))
    y.register_hook(lambda grad: grad * 3)
    handle = x.register_hook(lambda grad: -grad)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    return x.grad, y.grad, seen


@program()
def hooks_of_nodes(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = x.exp()
    seen: list[Any] = []
    y.grad_fn.register_hook(lambda ins, outs: seen.append((ins, outs)))
    y.grad_fn.register_prehook(lambda outs: (outs[0] * 2,))
    torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: seen.append([g is None for g in grads]))
    y.sum().backward()
    return x.grad, seen, graph_of(y)


@program()
def hook_that_raises(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = x * 2

    def hook(grad: Tensor) -> Tensor:
        raise ValueError("mine")

    y.register_hook(hook)
    return refused(lambda: y.sum().backward()), x.grad


@program()
def hook_of_another_shape(device: str) -> Any:
    x = randn(device, 3, grad=True)
    x.register_hook(lambda grad: grad[:1])
    return refused(lambda: x.sum().backward())


@program()
def checkpointed(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU()).to(device)
    x = randn(device, 5, 8, grad=True)

    def step(x: Tensor) -> Tensor:
        return checkpoint(layers, x, use_reentrant=False).square().sum()

    loss = wrap(step)(x)
    loss.backward()
    return loss, x.grad, [p.grad for p in layers.parameters()]


@program()
def checkpoint_reentrant(device: str) -> Any:
    layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))).to(device)
    x = randn(device, 5, 6, grad=True)
    checkpoint_sequential(layers, 2, x, use_reentrant=True).sum().backward()
    return x.grad, [p.grad for p in layers.parameters()]


@program()
def checkpoint_that_differs(device: str) -> Any:
    x = randn(device, 5, grad=True)
    calls: list[int] = []

    def changing(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin() if len(calls) == 1 else x.sum()

    y = checkpoint(changing, x, use_reentrant=False)
    return refused(lambda: y.sum().backward())[:60]


@program(draws=True)
def checkpoint_with_dropout(device: str) -> Any:
    x = randn(device, 64, grad=True)
    y = checkpoint(lambda x: nn.functional.dropout(x, 0.5), x, use_reentrant=False)
    y.sum().backward()
    return y, bool(((y.detach() != 0) == (x.grad != 0)).all())


@program()
def saved_on_cpu(device: str) -> Any:
    x = randn(device, 4, 4, grad=True)
    with save_on_cpu():
        y = (x @ x).tanh().prod(1)
    y.sum().backward()
    return y, x.grad


@program()
def saved_pinned(device: str) -> Any:
    x = randn(device, 4, 4, grad=True)
    with save_on_cpu(pin_memory=True, device_type=torch.accelerator.current_accelerator().type):
        y = x.exp() * x
    y.sum().backward()
    return x.grad


@program()
def saved_with_hooks(device: str) -> Any:
    x = randn(device, 3, 3, grad=True)
    packed: list[Any] = []

    def pack(t: Tensor) -> Any:
        packed.append((t.shape, t.dtype))
        return t.detach().cpu().numpy()

    with saved_tensors_hooks(pack, lambda array: torch.from_numpy(array).to(device)):
        y = (x.sigmoid() * x).softmax(0)
    y.square().sum().backward()
    return x.grad, packed


@program()
def saved_tensors_disabled(device: str) -> Any:
    x = randn(device, 3, grad=True)
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):

        def use() -> None:
            with saved_tensors_hooks(lambda t: t, lambda t: t):
                x.exp()

        return refused(use)


@program()
def custom_function(device: str, wrap: Wrap) -> Any:
    x = randn(device, 5, grad=True)
    y = wrap(lambda x: Cube.apply(x).sum())(x)
    (first,) = torch.autograd.grad(y, x)
    return y, first


@program()
def custom_function_twice(device: str) -> Any:
    x = randn(device, 5, dtype=torch.float64, grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first, second, torch.autograd.gradcheck(Cube.apply, (x,)), torch.autograd.gradgradcheck(Cube.apply, (x,))


@program()
def custom_function_in_place(device: str) -> Any:
    x = randn(device, 5, grad=True)
    y = x + 1
    z = ScaleInPlace.apply(y, 3.0)
    z.sum().backward()
    return x.grad, z is y, y._version, refused(lambda: ScaleInPlace.apply(x, 2.0))


@program()
def custom_function_for_functorch(device: str) -> Any:
    x = randn(device, 3, 4)
    values, places = torch.func.vmap(SetupContext.apply)(x)
    out, tangent = torch.func.jvp(lambda x: SetupContext.apply(x)[0], (x,), (torch.ones_like(x),))
    return values, places, out, tangent, torch.func.grad(lambda x: SetupContext.apply(x)[0].sum())(x)


@program()
def custom_function_wrong_gradient(device: str) -> Any:
    x = randn(device, 5, grad=True)
    return refused(lambda: Bad.apply(x).sum().backward())


@program()
def gradcheck_of_operators(device: str) -> Any:
    x = randn(device, 3, 4, dtype=torch.float64, grad=True)
    functions = (torch.tanh, torch.logsumexp, torch.cumsum)
    arguments = ((), (1,), (0,))
    return [
        torch.autograd.gradcheck(lambda t, f=f, a=a: f(t, *a), (x,), check_forward_ad=True, check_batched_grad=True)
        for f, a in zip(functions, arguments, strict=True)
    ]


@program()
def gradcheck_that_fails(device: str) -> Any:
    x = randn(device, 3, dtype=torch.float64, grad=True)
    return torch.autograd.gradcheck(lambda t: t.detach() * t, (x,), raise_exception=False), refused(
        lambda: torch.autograd.gradcheck(lambda t: t * 2, (x.detach().float().requires_grad_(),), eps=1e-3)
    )[:30]


@program()
def double_backward(device: str) -> Any:
    x = randn(device, 4, 3, grad=True)
    w = randn(device, 2, 3, grad=True)
    y = nn.functional.softplus(nn.functional.linear(x, w)).sum()
    grads = torch.autograd.grad(y, (x, w), create_graph=True)
    penalty = sum(g.square().sum() for g in grads)
    penalty.backward()
    return grads, x.grad, w.grad


@program()
def gradient_penalty_compiled(device: str, wrap: Wrap) -> Any:
    x = randn(device, 4, 3)
    w = randn(device, 3, 3, grad=True)
    loss = wrap(lambda x, w: ((x @ w).sin() * x).sum())(x, w)
    return loss, torch.autograd.grad(loss, w)


@program()
def anomaly(device: str) -> Any:
    x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    with torch.autograd.detect_anomaly():
        y = x.sqrt()
        return refused(lambda: y.sum().backward())


@program()
def anomaly_without_nan(device: str) -> Any:
    x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        x.sqrt().sum().backward()
    return x.grad


@program()
def backward_twice(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, refused(y.backward)


@program()
def backward_refused(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = x * 2
    whole = count(device, 3, dtype=torch.int64)
    return [
        refused(lambda: y.backward()),
        refused(lambda: y.backward(torch.ones(2, device=device))),
        refused(lambda: y.detach().sum().backward()),
        refused(lambda: torch.autograd.grad(y.sum(), randn(device, 3, grad=True))),
        refused(lambda: whole.requires_grad_()),
        refused(lambda: torch.autograd.grad(y.sum(), x.detach())),
        refused(lambda: y.requires_grad_(False)),
        refused(lambda: x.cpu().numpy()),
        refused(lambda: x.data.set_(x)),
    ]


@program()
def written_after_saving(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = x.exp()
    y.mul_(2)
    z = randn(device, 3, grad=True) * 1
    product = z * z
    z.add_(1)
    return refused(lambda: y.sum().backward()), refused(lambda: product.sum().backward())


@program()
def leaves_written(device: str) -> Any:
    x = randn(device, 4, grad=True)
    view = x[:2]
    with torch.no_grad():
        x.mul_(2)
        view_without = x[1:]
    return (
        refused(lambda: x.add_(1)),
        refused(lambda: view.add_(1)),
        refused(lambda: view_without.add_(1)),
        x._version,
        x.detach(),
    )


@program()
def views_of_unbind_written(device: str) -> Any:
    x = randn(device, 2, 3, grad=True) + 0
    first, second = x.unbind()
    parts = (x * 1).chunk(2)
    return refused(lambda: first.add_(1)), refused(lambda: parts[0].mul_(2)), second


@program()
def views_and_gradients(device: str) -> Any:
    x = randn(device, 4, 6, grad=True)
    base = x.clone()
    base[1:3].mul_(2)
    base.t()[0] = 7
    base.view(-1)[::5].mul_(3)
    base.diagonal().neg_()
    base.square().sum().backward()
    return base, x.grad, graph_of(base)


@program()
def gradients_of_expanded(device: str) -> Any:
    x = randn(device, 3, 1, grad=True)
    y = x.expand(3, 5)
    y.cos().sum().backward()
    return x.grad, x.grad.is_contiguous()


@program()
def gradient_layouts(device: str) -> Any:
    found = []
    for x in (randn(device, 4, 5).t(), randn(device, 2, 3, 4, 4).contiguous(memory_format=torch.channels_last)):
        x = x.detach().requires_grad_()
        (x * 2).sum().backward()
        (x * x).sum().backward()
        found.append(x.grad)
    return found


@program()
def accumulated(device: str) -> Any:
    x = randn(device, 3, grad=True)
    x.grad = torch.ones_like(x)
    kept = x.grad
    x.sum().backward()
    x.grad.add_(1)
    return (
        kept,
        x.grad,
        refused(lambda: setattr(x, "grad", torch.ones(2, device=device))),
        refused(lambda: setattr(x, "grad", torch.ones(3, dtype=torch.float64, device=device))),
        refused(lambda: setattr(x, "grad", 3)),
    )


@program()
def unused_inputs(device: str) -> Any:
    x, y = randn(device, 3, grad=True), randn(device, 3, grad=True)
    return (
        torch.autograd.grad(x.sum(), (x, y), allow_unused=True),
        torch.autograd.grad(x.sum(), (x, y), materialize_grads=True),
        refused(lambda: torch.autograd.grad(x.sum(), (x, y))),
    )


@program()
def batched_gradients(device: str) -> Any:
    x = randn(device, 4, grad=True)
    y = x.sin() * x.sum()
    (rows,) = torch.autograd.grad(y, x, torch.eye(4, device=device), is_grads_batched=True)
    return rows


@program()
def functional_interface(device: str) -> Any:
    x = randn(device, 3, dtype=torch.float64)
    f = lambda t: (t.exp() * t.flip(0)).sum()  # noqa: E731
    af = torch.autograd.functional
    v = torch.ones_like(x)
    return (
        af.hessian(f, x),
        af.jacobian(lambda t: t.sin() * t[0], x),
        af.vjp(f, x),
        af.jvp(lambda t: t.cos(), x, v),
        af.hvp(f, x, v),
        af.vhp(f, x, v),
        af.jacobian(lambda t: t.exp(), x, vectorize=True, strategy="forward-mode"),
    )


@program()
def forward_mode(device: str) -> Any:
    import torch.autograd.forward_ad as fwad

    x, t = randn(device, 3, 3), randn(device, 3, 3)
    with fwad.dual_level():
        dual = fwad.make_dual(x, t)
        out = (dual @ dual).softmax(1)
        primal, tangent = fwad.unpack_dual(out)
        view = fwad.unpack_dual(dual.t()).tangent
        return primal.clone(), tangent.clone(), view.clone(), refused(lambda: fwad.make_dual(x, t[0]))


@program()
def modes(device: str) -> Any:
    x = randn(device, 3, grad=True)
    with torch.inference_mode():
        inferred = x * 2
    with torch.no_grad():
        plain = x * 2
        with torch.enable_grad():
            inside = x * 2
    return (
        inferred.is_inference(),
        plain.requires_grad,
        inside.requires_grad,
        refused(lambda: inferred.add_(1)),
        refused(lambda: (inferred * x).sum().backward()),
        refused(lambda: inferred.requires_grad_()),
        refused(lambda: inferred._version),
    )


@program()
def multithreaded_backward(device: str) -> Any:
    import threading

    w = randn(device, 4, 4, grad=True)
    x = randn(device, 4, 4)
    results: list[Any] = [None, None]

    def work(place: int) -> None:
        results[place] = torch.autograd.grad((x @ w * (place + 1)).tanh().sum(), w)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


@program()
def complex_gradients(device: str) -> Any:
    z = torch.complex(torch.randn(4), torch.randn(4)).to(device).requires_grad_()
    loss = (z * z.conj()).real.sum() + z.abs().sum() + torch.view_as_real(z).sum()
    loss.backward()
    x = randn(device, 4, grad=True)
    torch.view_as_real(x * (1 + 2j)).square().sum().backward()
    return loss, z.grad, x.grad, refused(lambda: (z * 2).sum().backward())


@program()
def autograd_graph_edges(device: str) -> Any:
    x = randn(device, 3, grad=True)
    y = (x * 2).sin()
    edge = torch.autograd.graph.get_gradient_edge(y)
    node = torch.autograd.graph.get_gradient_edge(x)
    (found,) = torch.autograd.grad(torch.autograd.graph.get_gradient_edge(y.sum()), (node,))
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        z = x.exp().mul(1)
        w = z * z
        z.zero_()
        (other,) = torch.autograd.grad(w.sum(), x)
    return found, edge.node.name(), edge.output_nr, other


@program()
def named_saved(device: str) -> Any:
    x = randn(device, 3, 4, grad=True)
    y = x.max(1).values * x.logsumexp(1)
    node = y.grad_fn
    return sorted(name for name in dir(node) if name.startswith("_saved")), node._saved_self, node._saved_other


@program()
def resnet_step(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = randn(device, 4, 3, 8, 8), torch.tensor([0, 1, 2, 1], device=device)
    step = wrap(lambda: nn.functional.cross_entropy(model(x), y))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
