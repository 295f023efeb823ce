# SPDX-License-Identifier: Apache-2.0
"""What changes how a program runs: autocast, determinism, defaults, seeds, distributions, streams, profilers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as d
from torch.nn import functional as F  # noqa: N812

from tools.programs.given import count, randn, refused
from tools.programs.registry import Wrap, program


def _kind(device: str) -> str:
    return device.partition(":")[0]


@program(terms=1000)
def autocast(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
    x = randn(device, 4, 8)

    def step(x: Tensor) -> Any:
        with torch.autocast(_kind(device), dtype=torch.bfloat16):
            y = model(x)
            return (
                y.dtype,
                (x @ x.t()).dtype,
                F.mse_loss(y, y * 0).dtype,
            )

    return wrap(step)(x), torch.is_autocast_enabled(_kind(device))


@program()
def autocast_refused(device: str) -> Any:
    return (
        refused(lambda: torch.autocast("nothing"))[:60],
        refused(lambda: torch.autocast(3)),
        torch.amp.is_autocast_available(_kind(device)),
        [p.dtype for p in nn.Linear(2, 2).to(device).half().parameters()],
    )


@program()
def autocast_functions(device: str) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(
            device_type=torch.accelerator.current_accelerator().type if device != "cpu" else "cpu",
            cast_inputs=torch.float32,
        )
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=torch.accelerator.current_accelerator().type if device != "cpu" else "cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    x = randn(device, 3, grad=True)
    with torch.autocast(_kind(device), dtype=torch.bfloat16):
        y = Own.apply(x.bfloat16())
        with torch.autocast(_kind(device), enabled=False):
            z = x[None] @ x[:, None]
    y.sum().backward()
    return y.dtype, z.dtype, x.grad


@program()
def deterministic(device: str) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        x, i = count(device, 4), torch.tensor([0, 1, 0], device=device)
        return (
            x.clone().index_add_(0, i, x[:3]),
            x.clone().index_put_((i,), x[:3], accumulate=True),
            torch.empty(2, device=device),
            x.cumsum(0),
            x.clone().scatter_add_(0, i, x[:3]),
            torch.empty(2, dtype=torch.int32, device=device),
            x.new_empty(1),
            x.clone().resize_(6),
            torch.are_deterministic_algorithms_enabled(),
            x[i],
            x.kthvalue(2).values,
            F.interpolate(x[None, None], scale_factor=2),
            x.clone().index_copy_(0, i[:2], x[:2]),
        )
    finally:
        torch.use_deterministic_algorithms(False)


@program(draws=True)
def default_device(device: str) -> Any:
    with torch.device(device):
        x = torch.ones(2)
        model = nn.Linear(2, 2)
        made = [
            torch.tensor([1.0]),
            torch.arange(3),
            torch.zeros(2, device="cpu"),
            torch.eye(2),
            torch.as_tensor([1]),
            torch.full((1,), 2.0),
            torch.linspace(0, 1, 3),
            torch.hann_window(3),
            torch.from_numpy(torch.ones(1, device="cpu").numpy()),
            torch.tril_indices(2, 2),
        ]
        places = [str(t.device).partition(":")[0] == _kind(device) for t in made]
    torch.set_default_device(device)
    try:
        later = torch.zeros(1).device, torch.get_default_device().type
    finally:
        torch.set_default_device(None)
    return x, [p.device for p in model.parameters()], made, places[:2], later, torch.ones(1).device.type == "cpu"


@program()
def seeds(device: str) -> Any:
    module = torch.get_device_module(device)
    torch.manual_seed(5)
    a = torch.rand(4, device=device)
    torch.manual_seed(5)
    b = torch.rand(4, device=device)
    state = torch.get_rng_state() if device == "cpu" else module.get_rng_state()
    c = torch.rand(4, device=device)
    torch.set_rng_state(state) if device == "cpu" else module.set_rng_state(state)
    e = torch.rand(4, device=device)
    g = torch.Generator(device).manual_seed(3)
    f, h = torch.rand(4, generator=g, device=device), torch.rand(4, generator=g.manual_seed(3), device=device)
    with torch.random.fork_rng(
        device_type=_kind(device) if device != "cpu" else torch.accelerator.current_accelerator().type
    ):
        torch.rand(3, device=device)
    return (
        bool((a == b).all()),
        bool((c == e).all()),
        bool((f == h).all()),
        g.initial_seed(),
        g.device,
        torch.initial_seed(),
        refused(lambda: torch.rand(2, generator=torch.Generator("meta"), device=device))[:12],
        refused(lambda: torch.randn(2, generator=3, device=device))[:9],
    )


@program(draws=True)
def drawn(device: str) -> Any:
    x = count(device, 3, 4)
    return (
        torch.rand(2, device=device),
        torch.randn(2, dtype=torch.float64, device=device),
        torch.randint(3, (2,), device=device),
        torch.randperm(5, device=device).sort().values,
        torch.multinomial(x + 1, 2),
        torch.multinomial(x + 1, 6, replacement=True),
        torch.bernoulli(x / 12),
        x.clone().normal_(),
        x.clone().exponential_(),
        x.clone().cauchy_(),
        x.clone().geometric_(0.5),
        x.clone().log_normal_(),
        x.long().random_(),
        torch.normal(x, x + 1),
        torch.normal(0.0, 1.0, (2,), device=device),
        torch.rand_like(x, dtype=torch.float16),
        F.gumbel_softmax(x),
        F.rrelu(x, training=True),
        F.alpha_dropout(x, 0.5, True),
        torch.randn(2, dtype=torch.complex64, device=device),
    )


@program(draws=True)
def drawn_by_acceptance(device: str) -> Any:
    x = count(device, 3, 4) + 1
    return (
        torch.poisson(x),
        torch.binomial(x, x / 13),
        torch._standard_gamma(x),
        torch._sample_dirichlet(x),
        d.Beta(x, x).rsample(),
        d.Gamma(x, x).sample((2,)),
        d.Dirichlet(x).rsample(),
        d.StudentT(x).rsample(),
        d.Poisson(x).sample(),
        d.Binomial(5, x / 13).sample(),
        d.NegativeBinomial(5, x / 13).sample(),
        d.Chi2(x).sample(),
        d.VonMises(x, x).sample(),
    )


def _distributions(device: str) -> list[Any]:
    a, b, p = count(device, 4) + 1, count(device, 4) / 4 + 0.5, (count(device, 4) + 1) / 6
    m = torch.eye(4, device=device) * 2
    return [
        d.Normal(a, b),
        d.Bernoulli(p),
        d.Categorical(p),
        d.Beta(a, b),
        d.Gamma(a, b),
        d.Dirichlet(a),
        d.Exponential(a),
        d.Laplace(a, b),
        d.Cauchy(a, b),
        d.Geometric(p),
        d.Gumbel(a, b),
        d.HalfNormal(a),
        d.HalfCauchy(a),
        d.LogNormal(a, b),
        d.Pareto(a, b),
        d.Poisson(a),
        d.StudentT(a),
        d.Uniform(a, a + 1),
        d.Weibull(a, b),
        d.Binomial(5, p),
        d.NegativeBinomial(5, p),
        d.MultivariateNormal(a, m),
        d.Multinomial(5, p),
        d.OneHotCategorical(p),
        d.Kumaraswamy(a, b),
        d.ContinuousBernoulli(p),
        d.RelaxedBernoulli(torch.tensor(0.5, device=device), p),
        d.VonMises(a, b),
        d.Independent(d.Normal(a, b), 1),
        d.Chi2(a),
        d.FisherSnedecor(a, a),
        d.InverseGamma(a, b),
        d.LogisticNormal(a, b),
        d.LowRankMultivariateNormal(a, m, a),
        d.MixtureSameFamily(d.Categorical(p), d.Normal(a, b)),
    ]


@program(terms=1000)
def likelihoods(device: str) -> Any:
    found = []
    for each in _distributions(device):
        value = {
            "Dirichlet": torch.full((4,), 0.25),
            "Multinomial": torch.tensor([2.0, 1, 1, 1]),
            "LogisticNormal": torch.full((5,), 0.2),
            "OneHotCategorical": torch.tensor([0.0, 1, 0, 0]),
        }.get(type(each).__name__)
        if value is None:
            value = torch.tensor(0.5) if each.batch_shape == () and each.event_shape == () else torch.full((4,), 0.5)
            value = value.round() if getattr(each.support, "is_discrete", False) else value
        if type(each).__name__ in ("Uniform", "Pareto"):
            value = value + each.support.lower_bound.cpu() if hasattr(each.support, "lower_bound") else value
        value = value.to(device)
        call = lambda each=each, value=value: each.log_prob(value)  # noqa: E731
        found.append(call() if refused(call) == "not refused" else refused(call))
        try:
            found += [each.mean, each.variance, each.entropy()]
        except NotImplementedError:
            found.append("has none")
    return found, [repr(each) for each in _distributions(device)[:5]]


@program(draws=True, terms=1000)
def sampled(device: str) -> Any:
    return [(each.sample((2,)), each.rsample() if each.has_rsample else None) for each in _distributions(device)]


@program(terms=1000)
def divergences(device: str) -> Any:
    a, b = count(device, 3) + 1, count(device, 3) / 3 + 0.5
    n = d.Normal(a, b)
    return (
        d.kl_divergence(n, d.Normal(b, a)),
        d.kl_divergence(d.Gamma(a, b), d.Gamma(b, a)),
        d.kl_divergence(d.Beta(a, b), d.Beta(b, a)),
        d.kl_divergence(d.Dirichlet(a), d.Dirichlet(b)),
        n.cdf(a),
        n.icdf(b / 3),
        d.TransformedDistribution(n, [d.ExpTransform(), d.AffineTransform(1, 2)]).log_prob(a + 9),
        refused(lambda: d.Normal(a, -b)),
        refused(lambda: n.log_prob(torch.ones(2, device=device))),
        refused(lambda: d.kl_divergence(n, d.Gamma(a, b))),
        refused(lambda: d.Categorical(-a)),
        refused(lambda: d.Bernoulli(a)),
        n.expand((2, 3)).batch_shape,
        d.biject_to(d.constraints.simplex)(a),
    )


@program(draws=True)
def gradients_of_samples(device: str) -> Any:
    a = (count(device, 3) + 1).requires_grad_()
    return [torch.autograd.grad(dist.rsample().sum(), a)[0] for dist in (d.Gamma(a, a), d.Beta(a, a), d.Normal(a, a))]


@program()
def derivatives_of_samplers(device: str) -> Any:
    return torch._standard_gamma_grad(count(device, 3) + 1, count(device, 3) + 0.5), torch._dirichlet_grad(
        torch.full((3,), 0.3, device=device), count(device, 3) + 1, torch.full((3,), 6.0, device=device)
    )


@program()
def streams(device: str) -> Any:
    kind = torch.accelerator.current_accelerator()
    module = torch.get_device_module(kind)
    where = str(kind)
    x = count(where, 100)
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        y = x * 2
        event = stream.record_event()
    module.current_stream().wait_event(event)
    y.record_stream(module.current_stream())
    event.synchronize()
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    (y + 1).sum()
    end.record()
    end.synchronize()
    return (
        y.cpu(),
        event.query(),
        start.elapsed_time(end) >= 0,
        stream.query(),
        stream == module.current_stream(),
        refused(lambda: module.Event().elapsed_time(end)),
        torch.accelerator.current_stream() == module.current_stream(),
        module.current_device(),
        torch.accelerator.device_count() >= 1,
    )


@program()
def profiled(device: str) -> Any:
    from torch.profiler import ProfilerActivity, profile, record_function

    x = count(device, 4, 4)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        with record_function("mine"):
            (x @ x).relu().sum()
    return sorted(
        {e.key for e in p.key_averages() if e.key in ("mine", "aten::matmul", "aten::mm", "aten::relu", "aten::sum")}
    )


@program()
def memory_after(device: str) -> Any:
    module = torch.get_device_module(device)
    if device == "cpu":
        return True, True
    before = module.memory_allocated()
    x = torch.ones(1000, device=device)
    y = x * 2
    y.sum().item()
    during = module.memory_allocated()
    del x, y
    module.synchronize()
    return during > before, module.memory_allocated() <= before


@program()
def precision(device: str) -> Any:
    torch.set_float32_matmul_precision("high")
    try:
        return (
            torch.get_float32_matmul_precision(),
            (count(device, 3, 3) @ count(device, 3, 3)),
            refused(lambda: torch.set_float32_matmul_precision("none")),
        )
    finally:
        torch.set_float32_matmul_precision("highest")


@program()
def function_modes(device: str) -> Any:
    from torch.overrides import TorchFunctionMode

    class Names(TorchFunctionMode):
        names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Names() as mode:
        x = torch.ones(2, device=device)
        (x + 1).sum().item()
        F.relu(x)
    return mode.names


@program(dtypes=(torch.complex64, torch.float32))
def linear_algebra(device: str) -> Any:
    torch.manual_seed(1)
    a = torch.randn(4, 4)
    a = (a @ a.t() + torch.eye(4) * 4).to(device)
    la = torch.linalg
    singular = torch.zeros(3, 3, device=device)
    return (
        la.cholesky(a),
        la.inv(a),
        la.solve(a, a[:, :2]),
        la.det(a),
        la.slogdet(a),
        la.eigvalsh(a),
        la.svdvals(a),
        la.matrix_rank(a),
        la.norm(a),
        la.cond(a),
        la.pinv(a),
        la.matrix_power(a, 3),
        la.lstsq(a, a[:, :1]).solution,
        torch.trace(a),
        la.multi_dot([a, a, a]),
        refused(lambda: la.inv(singular)),
        refused(lambda: la.cholesky(-a)),
        refused(lambda: la.solve(singular, a[:3])),
        refused(lambda: la.inv(a[:3])),
        la.inv_ex(singular).info,
        refused(lambda: la.eigh(a[0])),
        la.vector_norm(a, 3),
        la.matrix_norm(a, "nuc"),
        refused(lambda: la.svd(a.half())),
        la.cross(a[:, :3], a[:, 1:]),
    )


@program(dtypes=(torch.complex64, torch.float32), terms=100)
def spectra(device: str) -> Any:
    x = count(device, 3, 8).sin()
    f = torch.fft
    return (
        f.fft(x),
        f.rfft(x),
        f.irfft(f.rfft(x)),
        f.fft2(x),
        f.fftshift(x),
        f.fftfreq(5, device=device),
        f.ifft(f.fft(x, norm="ortho"), norm="ortho"),
        torch.stft(x, 4, window=torch.hann_window(4, device=device), return_complex=True),
        refused(lambda: torch.stft(x, 4)),
        refused(lambda: f.fft(x, norm="no")),
        refused(lambda: f.fft(x, n=0)),
        refused(lambda: f.rfft(x * 1j)),
        f.hfft(x),
    )


@program()
def reductions(device: str, wrap: Wrap) -> Any:
    x = (count(device, 3, 4) * 7 % 5).sub(2)
    return wrap(
        lambda x: (
            x.sum(),
            x.mean(0),
            x.prod(1),
            x.std(1),
            x.var(0, correction=0),
            x.amax(),
            x.amin(1),
            x.aminmax(dim=1),
            x.max(1),
            x.argmin(0),
            x.median(1),
            x.mode(0),
            x.logsumexp(1),
            x.norm(),
            x.any(0),
            x.all(1),
            x.count_nonzero(0),
            x.cumsum(1),
            x.cumprod(0),
            x.cummin(1),
            x.sort(1, descending=True),
            x.topk(2),
            x.kthvalue(2, 0),
            x.quantile(0.3),
            x.nanquantile(0.5, 1),
            x.dist(x + 1),
            x.softmax(1),
            x.sum((0, 1), keepdim=True),
            torch.std_mean(x, 0),
            x.diff(),
            x.logcumsumexp(1),
            torch.trapezoid(x),
            x.sum(dtype=torch.float64),
            x[:0].sum(0),
            x.argsort(dim=1, stable=True),
            x.msort(),
        )
    )(x)


@program()
def accelerator_interface(device: str) -> Any:
    acc = torch.accelerator
    where = acc.current_accelerator()
    return (
        acc.is_available(),
        acc.device_count() > 0,
        acc.current_device_index(),
        refused(lambda: acc.set_device_index(99))[:12],
        torch.get_device_module(where) is getattr(torch, where.type),
        refused(lambda: torch.zeros(1, device=f"{where.type}:99"))[:12],
        torch._C._get_accelerator() == where,
        acc.memory_allocated() >= 0,
    )
