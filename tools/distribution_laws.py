# SPDX-License-Identifier: Apache-2.0
"""What is drawn at random, and by which law: the catalogue of ``tools/distributions.py``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor
from torch import distributions as D

#: Draws a number of values: (count,) on a device.
Draw = Callable[[int, str], Tensor]
INFINITY = math.inf
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WIDE = (torch.float64, torch.float32)


@dataclass(frozen=True)
class Case:
    """A way to draw, and the distribution function that it must have."""

    name: str
    dtype: torch.dtype  #: of what is drawn: numbers are taken as rounded to it
    draw: Draw
    law: Any  #: with ``cdf`` and, unless edges come of a sample, ``ppf``
    support: str = "(-inf, inf)"  #: the brackets tell whether an end may be drawn
    is_discrete: bool = False
    slow: int = 1  #: a case that takes so many times as long draws the less

    @property
    def label(self) -> str:
        """The name with the dtype."""
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Law:
    """A law that scipy has not."""

    cdf: Callable[[Any], Any]


def _empty(n: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.empty(n, dtype=dtype, device=device)


def _fills() -> Iterator[Case]:
    """Continuous fills, each with ordinary and with extreme parameters."""
    for dtype in FLOATS:
        yield Case("randn", dtype, lambda n, d, t=dtype: torch.randn(n, dtype=t, device=d), stats.norm())
        for name, arguments, law, support in (
            ("normal_", (3.0, 0.01), stats.norm(3, 0.01), "(-inf, inf)"),
            ("exponential_", (1.0,), stats.expon(), "(0, inf)"),
            ("exponential_", (50.0,), stats.expon(scale=1 / 50), "(0, inf)"),
            ("cauchy_", (), stats.cauchy(), "[-inf, inf]"),
            ("cauchy_", (-1.0, 0.001), stats.cauchy(-1, 0.001), "[-inf, inf]"),
            ("log_normal_", (0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5)), "(0, inf)"),
            ("log_normal_", (-1.0, 2.0), stats.lognorm(2, scale=math.exp(-1)), "(0, inf)"),
        ):
            yield _fill(name, dtype, arguments, law, support)
    for dtype in WIDE:
        huge = 1e300 if dtype == torch.float64 else 1e37
        for name, arguments, law, support in (
            ("uniform_", (-3.0, 5.0), stats.uniform(-3, 8), "[-3.0, 5.0)"),
            ("uniform_", (0.0, huge), stats.uniform(0, huge), f"[0.0, {huge})"),
            ("uniform_", (-1 / huge, 1 / huge), stats.uniform(-1 / huge, 2 / huge), f"[{-1 / huge}, {1 / huge})"),
            ("normal_", (huge, huge / 10), stats.norm(huge, huge / 10), "(-inf, inf)"),
            ("exponential_", (1e-30,), stats.expon(scale=1e30), "(0, inf)"),
            ("cauchy_", (0.0, huge / 1e9), stats.cauchy(0, huge / 1e9), "[-inf, inf]"),
        ):
            yield _fill(name, dtype, arguments, law, support)


def _fill(name: str, dtype: torch.dtype, arguments: tuple[float, ...], law: Any, support: str) -> Case:
    given = ", ".join(f"{number:g}" for number in arguments)
    return Case(f"{name}({given})", dtype, lambda n, d: getattr(_empty(n, dtype, d), name)(*arguments), law, support)


def _counts() -> Iterator[Case]:
    """Fills with integers, and with what must be taken as integers to be judged."""
    for dtype, digits in ((torch.float64, 53), (torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)):
        low = min(digits, 12)  # the lowest digits, of which each must be random
        yield Case(
            f"lowest {low} of {digits} digits of rand",
            dtype,
            lambda n, d, t=dtype, m=digits, k=low: (torch.rand(n, dtype=t, device=d).cpu().double() * 2**m) % 2**k,
            stats.randint(0, 2**low),
            f"[0, {2**low})",
            is_discrete=True,
        )
        scale = 2**low
        yield Case(
            f"first {low} digits of rand",
            dtype,
            lambda n, d, t=dtype, s=scale: torch.floor(torch.rand(n, dtype=t, device=d).cpu().double() * s),
            stats.randint(0, scale),
            f"[0, {scale})",
            is_discrete=True,
        )
        for p in (0.3, 1e-5, 1 - 1e-4):
            yield _fill_count("bernoulli_", dtype, (p,), stats.bernoulli(p))
        yield Case(
            "bernoulli of a tensor",
            dtype,
            lambda n, d, t=dtype: torch.bernoulli(torch.full((n,), 0.25, dtype=t, device=d)),
            stats.bernoulli(0.25),
            "[0, 1]",
            is_discrete=True,
        )
    for dtype in (*WIDE, torch.int64, torch.int32):
        for p in (0.4, 0.001):
            yield _fill_count("geometric_", dtype, (p,), stats.geom(p), "[1, inf)")
    yield _fill_count("geometric_", torch.int64, (1e-12,), stats.geom(1e-12), "[1, inf)")
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.bool):
        most = 1 if dtype == torch.bool else torch.iinfo(dtype).max
        yield _fill_count("random_", dtype, (), stats.randint(0, most + 1), f"[0, {most}]")
    for dtype, most in ((torch.float16, 2**11), (torch.bfloat16, 2**8)):
        yield _fill_count("random_", dtype, (), stats.randint(0, most + 1), f"[0, {most}]")
    for dtype in (torch.int64, torch.int32, torch.float64, torch.float32):
        yield _fill_count("random_", dtype, (-7, 1000), stats.randint(-7, 1000), "[-7, 1000)")
        yield Case(
            "randint(-3, 10)",
            dtype,
            lambda n, d, t=dtype: torch.randint(-3, 10, (n,), dtype=t, device=d),
            stats.randint(-3, 10),
            "[-3, 10)",
            is_discrete=True,
        )
    yield Case(
        "first 12 bits of randint of all",
        torch.int64,
        lambda n, d: torch.randint(-(2**63), 2**63 - 1, (n,), device=d) >> 52,
        stats.randint(-2048, 2048),
        "[-2048, 2048)",
        is_discrete=True,
    )
    yield Case(
        "random_(0, 2**40 + 1) modulo 1021",
        torch.int64,
        lambda n, d: _empty(n, torch.int64, d).random_(0, 2**40 + 1) % 1021,
        stats.randint(0, 1021),
        "[0, 1021)",
        is_discrete=True,
    )


def _fill_count(name: str, dtype: torch.dtype, arguments: tuple[float, ...], law: Any, support: str = "[0, 1]") -> Case:
    case = _fill(name, dtype, arguments, law, support)
    return Case(case.name, dtype, case.draw, law, support, is_discrete=True)


#: Weights of categories, and the law of their numbers.
_WEIGHTS = torch.tensor([0.5, 0.0, 1.5, 4.0, 2.0])
_CATEGORIES = stats.rv_discrete(values=(range(5), (_WEIGHTS / _WEIGHTS.sum()).double().numpy()))
_FOUR = (0.1, 0.2, 0.3, 0.4)
_FOUR_LAW = stats.rv_discrete(values=(range(4), _FOUR))


def _zeros_of(dropped: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Draw:
    return lambda n, d: dropped(torch.ones(n, dtype=dtype, device=d)) == 0


def _orders(n: int, device: str) -> Tensor:
    """Which of 24 orders each of many random orders of four is: by a fold of one long one."""
    rows = torch.stack([torch.randperm(4, device=device) for _ in range(min(n, 2000))]).cpu()
    names = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    return torch.tensor([names[tuple(row)] for row in rows.tolist()])


def _operators() -> Iterator[Case]:
    """Operators that draw by a tensor, or on the way."""
    for dtype in FLOATS:
        weights = _WEIGHTS.to(dtype)
        yield Case(
            "multinomial with replacement",
            dtype,
            lambda n, d, w=weights: torch.multinomial(w.to(d), n, replacement=True),
            _CATEGORIES,
            "[0, 4]",
            is_discrete=True,
        )
        yield Case(
            "multinomial without",
            dtype,
            lambda n, d, w=weights: torch.multinomial(w.to(d).expand(n, 5), 1).flatten(),
            _CATEGORIES,
            "[0, 4]",
            is_discrete=True,
        )
        for p in (0.1, 0.5):
            name, law = f"dropout({p})", stats.bernoulli(p)
            draw = _zeros_of(lambda x, p=p: F.dropout(x, p), dtype)
            yield Case(name, dtype, draw, law, "[0, 1]", is_discrete=True)
        yield Case(
            "alpha_dropout(0.2)",
            dtype,
            lambda n, d, t=dtype: F.alpha_dropout(torch.ones(n, dtype=t, device=d), 0.2, training=True) < 0,
            stats.bernoulli(0.2),
            "[0, 1]",
            is_discrete=True,
        )
    for dtype in WIDE:
        # PyTorch adds its numbers in the dtype of the logits: of halves, equal ones decide.
        yield Case(
            "gumbel_softmax",
            dtype,
            lambda n, d, t=dtype: (
                F.gumbel_softmax(torch.tensor(_FOUR, device=d).log().to(t).expand(n, 4), hard=True)
                .float()
                .matmul(torch.arange(4.0, device=d))
                .round()
            ),
            _FOUR_LAW,
            "[0, 3]",
            is_discrete=True,
        )
        yield Case(
            "normal of tensors",
            dtype,
            lambda n, d, t=dtype: torch.normal(
                torch.full((n,), 2.0, dtype=t, device=d), torch.full((n,), 0.5, dtype=t, device=d)
            ),
            stats.norm(2, 0.5),
        )
        yield Case(
            "rrelu's slopes",
            dtype,
            lambda n, d, t=dtype: -F.rrelu(torch.full((n,), -1.0, dtype=t, device=d), 0.1, 0.3, training=True),
            stats.uniform(0.1, 0.2),
            "[0.0999, 0.3001]",
        )
        for rate in (0.2, 7.0, 3000.0):
            yield Case(
                f"poisson({rate:g})",
                dtype,
                lambda n, d, t=dtype, r=rate: torch.poisson(torch.full((n,), r, dtype=t, device=d)),
                stats.poisson(rate),
                "[0, inf)",
                is_discrete=True,
            )
        for shape in (0.3, 0.7, 1.0, 40.0):
            yield Case(
                f"_standard_gamma({shape:g})",
                dtype,
                lambda n, d, t=dtype, a=shape: torch._standard_gamma(torch.full((n,), a, dtype=t, device=d)),
                stats.gamma(shape),
                "[0, inf)",
                slow=2,
            )
        for count, p in ((5.0, 0.3), (1000.0, 0.02), (1000.0, 0.6)):
            yield Case(
                f"binomial({count:g}, {p:g})",
                dtype,
                lambda n, d, t=dtype, c=count, q=p: torch.binomial(
                    torch.full((n,), c, dtype=t, device=d), torch.full((n,), q, dtype=t, device=d)
                ),
                stats.binom(int(count), p),
                f"[0, {count}]",
                is_discrete=True,
            )
    for dtype, part in itertools.product((torch.complex64, torch.complex128), (0, 1)):
        name = f"{('real', 'imaginary')[part]} parts of"
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        yield Case(
            f"{name} complex randn",
            real,
            lambda n, d, t=dtype, i=part: torch.view_as_real(torch.randn(n, dtype=t, device=d))[:, i],
            stats.norm(0, 2**-0.5),
        )
        yield Case(
            f"{name} complex rand",
            real,
            lambda n, d, t=dtype, i=part: torch.view_as_real(torch.rand(n, dtype=t, device=d))[:, i],
            stats.uniform(),
            "[0, 1)",
        )
    yield Case("randperm(4)", torch.int64, _orders, stats.randint(0, 24), "[0, 23]", is_discrete=True, slow=5000)
    yield Case(
        "place of the first in randperm",
        torch.int64,
        lambda n, d: torch.randperm(n, device=d) * 1000 // n,
        Law(lambda x: np.clip((np.floor(x) + 1) / 1000, 0, 1)),
        "[0, 1000)",
        is_discrete=True,
    )


# ---- torch.distributions ----

#: Makes a distribution whose parameters are tensors of a dtype on a device.
Make = Callable[[Callable[..., Tensor]], D.Distribution]


def _of(
    name: str, make: Make, law: Any, support: str, take: Any = None, is_discrete: bool = False, slow: int = 1
) -> Iterator[Case]:
    for dtype in WIDE:

        def draw(n: int, device: str, dtype: torch.dtype = dtype) -> Tensor:
            made = make(lambda *values: torch.tensor(*values, dtype=dtype, device=device))
            drawn = made.sample((n,))
            return drawn if take is None else take(drawn)

        yield Case(f"D.{name}", dtype, draw, law, support, is_discrete, slow)


def _logistic(x: Tensor) -> Tensor:
    return x.double().cpu().logit() * 0.7 - math.log(0.3 / 0.7)


_COVARIANCE = [[2.0, 0.5], [0.5, 1.0]]
_MIXTURE = Law(lambda x: 0.3 * stats.norm(-2, 1).cdf(x) + 0.7 * stats.norm(1, 0.5).cdf(x))


def _distributions() -> Iterator[Case]:
    """The samplers of ``torch.distributions``; of vectors and matrices something whose law is known."""
    number = _numbers_of_categories
    yield from itertools.chain(
        _of("Bernoulli", lambda t: D.Bernoulli(t(0.3)), stats.bernoulli(0.3), "[0, 1]", is_discrete=True),
        _of("Beta", lambda t: D.Beta(t(0.5), t(2.0)), stats.beta(0.5, 2), "[0, 1]", slow=4),
        _of("Binomial", lambda t: D.Binomial(20, t(0.4)), stats.binom(20, 0.4), "[0, 20]", is_discrete=True),
        _of("Categorical", lambda t: D.Categorical(t(_FOUR)), _FOUR_LAW, "[0, 3]", is_discrete=True),
        _of("Cauchy", lambda t: D.Cauchy(t(1.0), t(2.0)), stats.cauchy(1, 2), "[-inf, inf]"),
        _of("Chi2", lambda t: D.Chi2(t(3.0)), stats.chi2(3), "[0, inf)", slow=2),
        _of(
            "ContinuousBernoulli",
            lambda t: D.ContinuousBernoulli(t(0.2)),
            Law(lambda x: D.ContinuousBernoulli(torch.tensor(0.2).double()).cdf(torch.tensor(x).clamp(0, 1)).numpy()),
            "[0, 1]",
        ),
        _of("Dirichlet", lambda t: D.Dirichlet(t([0.5, 1.0, 3.0])), stats.beta(0.5, 4), "[0, 1]", _first, slow=4),
        _of("Exponential", lambda t: D.Exponential(t(2.0)), stats.expon(scale=0.5), "(0, inf)"),
        _of("FisherSnedecor", lambda t: D.FisherSnedecor(t(4.0), t(9.0)), stats.f(4, 9), "[0, inf)", slow=4),
        _of("Gamma", lambda t: D.Gamma(t(2.5), t(3.0)), stats.gamma(2.5, scale=1 / 3), "[0, inf)", slow=2),
        _of(
            "GeneralizedPareto",
            lambda t: D.GeneralizedPareto(t(0.0), t(1.0), t(0.2)),
            stats.genpareto(0.2),
            "[0, inf)",
        ),
        _of("Geometric", lambda t: D.Geometric(t(0.2)), stats.geom(0.2, loc=-1), "[0, inf)", is_discrete=True),
        _of("Gumbel", lambda t: D.Gumbel(t(1.0), t(2.0)), stats.gumbel_r(1, 2), "(-inf, inf)"),
        _of("HalfCauchy", lambda t: D.HalfCauchy(t(2.0)), stats.halfcauchy(scale=2), "[0, inf]"),
        _of("HalfNormal", lambda t: D.HalfNormal(t(2.0)), stats.halfnorm(scale=2), "[0, inf)"),
        _of(
            "Independent", lambda t: D.Independent(D.Normal(t([0.0]), t([1.0])), 1), stats.norm(), "(-inf, inf)", _first
        ),
        _of("InverseGamma", lambda t: D.InverseGamma(t(3.0), t(1.0)), stats.invgamma(3), "(0, inf)", slow=2),
        _of(
            "Kumaraswamy",
            lambda t: D.Kumaraswamy(t(2.0), t(3.0)),
            Law(lambda x: 1 - (1 - np.clip(x, 0, 1) ** 2) ** 3),
            "[0, 1]",
        ),
        _of(
            "LKJCholesky",
            lambda t: D.LKJCholesky(3, t(1.5)),
            stats.beta(2, 2, loc=-1, scale=2),
            "[-1, 1]",
            lambda x: x[:, 1, 0],
            slow=20,
        ),
        _of("Laplace", lambda t: D.Laplace(t(0.0), t(1.0)), stats.laplace(), "(-inf, inf)"),
        _of("LogNormal", lambda t: D.LogNormal(t(0.0), t(0.5)), stats.lognorm(0.5), "(0, inf)"),
        _of(
            "LogisticNormal",
            lambda t: D.LogisticNormal(t([0.3]), t([0.5])),
            stats.norm(0.3, 0.5),
            "(-inf, inf)",
            lambda x: x[:, 0].double().logit(),
        ),
        _of(
            "LowRankMultivariateNormal",
            lambda t: D.LowRankMultivariateNormal(t([0.0, 1.0]), t([[1.0], [0.5]]), t([1.0, 0.5])),
            stats.norm(1, (1.5**2 + 1.5) ** 0.5),
            "(-inf, inf)",
            lambda x: x.sum(-1),
            slow=2,
        ),
        _of(
            "MixtureSameFamily",
            lambda t: D.MixtureSameFamily(D.Categorical(t([0.3, 0.7])), D.Normal(t([-2.0, 1.0]), t([1.0, 0.5]))),
            _MIXTURE,
            "(-inf, inf)",
            slow=2,
        ),
        _of(
            "Multinomial",
            lambda t: D.Multinomial(6, t(_FOUR)),
            stats.binom(6, 0.3),
            "[0, 6]",
            lambda x: x[:, 2],
            is_discrete=True,
            slow=8,
        ),
        _of(
            "MultivariateNormal",
            lambda t: D.MultivariateNormal(t([0.0, 1.0]), t(_COVARIANCE)),
            stats.norm(1, 2.0),
            "(-inf, inf)",
            lambda x: x.sum(-1),
            slow=2,
        ),
        _of(
            "NegativeBinomial",
            lambda t: D.NegativeBinomial(t(4.0), t(0.6)),
            stats.nbinom(4, 0.4),
            "[0, inf)",
            is_discrete=True,
            slow=2,
        ),
        _of("Normal", lambda t: D.Normal(t(1.0), t(3.0)), stats.norm(1, 3), "(-inf, inf)"),
        _of(
            "OneHotCategorical", lambda t: D.OneHotCategorical(t(_FOUR)), _FOUR_LAW, "[0, 3]", number, is_discrete=True
        ),
        _of(
            "OneHotCategoricalStraightThrough",
            lambda t: D.OneHotCategoricalStraightThrough(t(_FOUR)),
            _FOUR_LAW,
            "[0, 3]",
            number,
            is_discrete=True,
        ),
        _of("Pareto", lambda t: D.Pareto(t(1.0), t(3.0)), stats.pareto(3), "[1, inf)"),
        _of(
            "RelaxedBernoulli", lambda t: D.RelaxedBernoulli(t(0.7), t(0.3)), stats.logistic(), "[-inf, inf]", _logistic
        ),
        _of(
            "RelaxedOneHotCategorical",
            lambda t: D.RelaxedOneHotCategorical(t(0.7), t(_FOUR)),
            _FOUR_LAW,
            "[0, 3]",
            number,
            is_discrete=True,
            slow=2,
        ),
        _of("StudentT", lambda t: D.StudentT(t(5.0)), stats.t(5), "(-inf, inf)", slow=2),
        _of("Poisson", lambda t: D.Poisson(t(4.0)), stats.poisson(4), "[0, inf)", is_discrete=True),
        _of("Uniform", lambda t: D.Uniform(t(-1.0), t(2.0)), stats.uniform(-1, 3), "[-1, 2]"),
        _of(
            "VonMises",
            lambda t: D.VonMises(t(0.5), t(2.0)),
            stats.vonmises(2),
            "[-3.15, 3.15]",
            lambda x: (x.double() - 0.5 + math.pi) % (2 * math.pi) - math.pi,
            slow=10,
        ),
        _of("Weibull", lambda t: D.Weibull(t(2.0), t(1.5)), stats.weibull_min(1.5, scale=2), "[0, inf)"),
        _of(
            "Wishart",
            lambda t: D.Wishart(t(4.0), t(_COVARIANCE)),
            stats.chi2(4, scale=2.0),
            "[0, inf)",
            lambda x: x[:, 0, 0],
            slow=20,
        ),
        _of(
            "TransformedDistribution",
            lambda t: D.TransformedDistribution(D.Normal(t(0.0), t(1.0)), D.AffineTransform(t(1.0), t(2.0))),
            stats.norm(1, 2),
            "(-inf, inf)",
        ),
    )


def _first(x: Tensor) -> Tensor:
    return x[:, 0]


def _numbers_of_categories(x: Tensor) -> Tensor:
    return x.argmax(-1)


def cases() -> list[Case]:
    """The whole catalogue."""
    return [*_fills(), *_counts(), *_operators(), *_distributions()]
