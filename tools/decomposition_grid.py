# SPDX-License-Identifier: Apache-2.0
"""Calls of operators over grids of arguments, for ``tools/decompositions.py``.

A :class:`Group` is one function with fixed options, and the tensors that it is called with: sizes and numbers that
change no plan of the device, so that a group compiles once and its combinations cost a call each. They come in turns,
each with other sizes and other numbers than the turns before it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: What the elements of a float tensor are.
KINDS = ("normal", "ties", "tiny", "huge", "constant", "special")
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0, 0.5, 3.0)

Source = tuple[Any, ...]


@dataclass
class Group:
    """One function, with all that it is called with in a turn, made when it is asked for. ``orders``: how often results
    are differentiated at most. ``parts``: functions whose results the function's are, one after the other, and of which
    every bit is fixed."""

    label: str
    function: Callable[..., Any]
    make_sources: Callable[[int], list[Source]]
    orders: int = 1
    parts: dict[str, Callable[..., Any]] = field(default_factory=dict)


def redrawn(
    shapes: Sequence[Sequence[int]], turn: int, free: slice = slice(None), low: int = 2, high: int = 14
) -> list[tuple[int, ...]]:
    """The shapes themselves in turn 0; else with other sizes from ``low`` to ``high`` in the dimensions ``free``, equal
    ones for equal ones. Sizes of 0 and 1 stay: plans tell them from others."""
    if not turn:
        return [tuple(shape) for shape in shapes]
    chance, found = random.Random(turn), []
    for shape in shapes:
        sizes = {size: chance.randint(low, high) for size in shape if size > 1}
        places = range(len(shape))[free]
        found.append(tuple(sizes.get(size, size) if place in places else size for place, size in enumerate(shape)))
    return found


def numbers(
    shape: Sequence[int], kind: str = "normal", dtype: torch.dtype = torch.float32, seed: int = 0, turn: int = 0
) -> Tensor:
    """A tensor of these sizes with elements of a kind."""
    generator = torch.Generator().manual_seed(turn * 100_003 + seed * 1009 + sum(shape))
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype) if dtype != torch.bool else None
        low, high = (0, 2) if info is None else (max(info.min, -9), 10)
        drawn = torch.randint(low, high, tuple(shape), generator=generator).to(dtype)
        if kind == "huge" and info is not None and drawn.numel():
            drawn.view(-1)[::2] = info.max
            drawn.view(-1)[1::3] = info.min
        return drawn
    drawn = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    if kind == "ties":
        drawn = (drawn * (1, 0.5, 2, 4)[turn % 4]).round()
    elif kind in ("tiny", "huge"):
        power = 4 if dtype == torch.float16 else (25, 15, 30, 20)[turn % 4]
        drawn = drawn * 10.0 ** (power if kind == "huge" else -power)
    elif kind == "constant":
        drawn = torch.full_like(drawn, (0.7, 1 / 3, -2.5, 100.1)[turn % 4])
    elif kind == "special" and drawn.numel():
        places = torch.randint(0, len(SPECIAL), drawn.shape, generator=generator)
        drawn = torch.where(torch.rand(drawn.shape, generator=generator) < 0.3, torch.tensor(SPECIAL)[places], drawn)
    return drawn.to(dtype)


def _sources(
    shapes: Sequence[Sequence[int]], dtype: torch.dtype, kinds: Sequence[str] = KINDS, **sizes: Any
) -> Callable[[int], list[Source]]:
    """One tensor of each shape and kind; ``sizes``: how :func:`redrawn` draws shapes again."""
    return lambda turn: [
        (numbers(shape, kind, dtype, turn=turn),) for shape in redrawn(shapes, turn, **sizes) for kind in kinds
    ]


def _of_images(
    dims: int, dtype: torch.dtype, kinds: Sequence[str] = KINDS, batched: bool = False
) -> Callable[[int], list[Source]]:
    """Batches of images and, unless ``batched``, single ones; their sides are drawn again."""
    shapes = _images(dims)[:-3] if batched else _images(dims)
    return _sources(shapes, dtype, kinds, free=slice(-dims, None), low=4)


def _label(name: str, dtype: torch.dtype, options: Any) -> str:
    return f"{name} {str(dtype).removeprefix('torch.')} {options}"


def _images(dims: int) -> list[tuple[int, ...]]:
    """Batches of images, of sides that do and do not divide."""
    sides = [(5, 7, 4), (6, 6, 6), (7, 4, 5), (9, 8, 7), (4, 5, 6), (8, 9, 4), (11, 4, 9), (4, 12, 8)]
    odd = [(0, 3, *sides[0][:dims]), (2, 3, *(1, 5, 4)[:dims])]
    batches = [(batch, 3, *side[:dims]) for side in sides for batch in (2, 3)]
    return [*odd, *batches, *((3, *side[:dims]) for side in sides[:3])]


# ---- pools ----

_AVERAGES: list[Any] = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
_MAXIMA: list[Any] = [F.max_pool1d, F.max_pool2d, F.max_pool3d]


def averages() -> Iterator[Group]:
    """``avg_pool1d`` to ``3d``: kernel, stride, padding, ceil_mode, count_include_pad, divisor_override."""
    kernels = [1, 2, 3, 4]
    for dims in (1, 2, 3):
        grid = itertools.product(kernels, [None, 1, 2, 3], [0, 1, 2], [False, True], [True, False], [None, 2], FLOATS)
        for kernel, stride, padding, ceil, counted, divisor, dtype in grid:
            if 2 * padding > kernel or (divisor and (dims == 1 or not counted)) or (dims == 3 and kernel == 4):
                continue
            if dtype != torch.float32 and (kernel != 3 or dims == 3):
                continue
            options = (kernel, stride, padding, ceil, counted, *([divisor] if dims > 1 else []))
            pool = _AVERAGES[dims - 1]
            yield Group(
                _label(f"avg_pool{dims}d", dtype, options),
                lambda x, pool=pool, options=options: pool(x, *options),
                _of_images(dims, dtype),
                orders=2 if dims < 3 else 1,
            )


def _maximum(dims: int, kernel: int, stride: int | None, padding: int, dilation: int, ceil: bool) -> Callable[..., Any]:
    pool = _MAXIMA[dims - 1]
    return lambda x: pool(x, kernel, stride, padding, dilation, ceil, return_indices=dims > 1)


def maxima() -> Iterator[Group]:
    """``max_pool1d`` to ``3d``: kernel, stride, padding, dilation, ceil_mode."""
    for dims in (1, 2, 3):
        grid = itertools.product([1, 2, 3], [None, 1, 2], [0, 1], [1, 2], [False, True], FLOATS)
        for kernel, stride, padding, dilation, ceil, dtype in grid:
            if 2 * padding > kernel or (dtype != torch.float32 and kernel != 2):
                continue
            options = (kernel, stride, padding, dilation, ceil)
            function = _maximum(dims, *options)
            # Where a window lies in the padding alone, the CPU's gradient is written beyond the image.
            shapes = [shape for shape in _images(dims) if dilation == 1 or min(shape[-dims:]) > 1]
            sources = _sources(shapes, dtype, free=slice(-dims, None), low=4)
            yield Group(_label(f"max_pool{dims}d", dtype, options), function, sources)


def other_pools() -> Iterator[Group]:
    """``lp_pool``, adaptive pools, and the inverse of a maximum."""
    for norm, kernel, stride, ceil in itertools.product([1.0, 2.0, 3.0, 0.5], [2, 3], [None, 1, 2], [False, True]):
        for dims, pool in ((1, F.lp_pool1d), (2, F.lp_pool2d)):
            options = (norm, kernel, stride, ceil)
            yield Group(
                _label(f"lp_pool{dims}d", torch.float32, options),
                lambda x, pool=pool, options=options: pool(x, *options),
                _of_images(dims, torch.float32, ("normal", "ties", "constant")),
            )
    adaptive: list[tuple[int, Any, Any]] = [
        (1, F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
        (2, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
        (3, F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
    ]
    for (dims, average, maximum), size, dtype in itertools.product(adaptive, [1, 2, 3, 5, 11], FLOATS):
        for pool in (average, maximum):
            yield Group(
                _label(pool.__name__, dtype, size),
                lambda x, pool=pool, size=size: pool(x, size),
                _of_images(dims, dtype),
                orders=2 if pool is average else 1,
            )
    for dims, kernel in itertools.product((1, 2, 3), (2, 3)):
        pool, back = _MAXIMA[dims - 1], (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[dims - 1]
        yield Group(
            _label(f"max_unpool{dims}d", torch.float32, kernel),
            lambda x, pool=pool, back=back, kernel=kernel: back(*pool(x, kernel, return_indices=True), kernel),
            _of_images(dims, torch.float32, ("normal", "ties")),
        )


# ---- interpolation ----

_MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}
_SIDES = (
    (3, 4, 5), (4, 3, 2), (6, 5, 4), (7, 9, 3), (10, 2, 6), (1, 5, 2), (2, 2, 2), (5, 5, 5), (8, 6, 7), (9, 7, 2),
    (13, 3, 4), (4, 11, 3),
)  # fmt: skip
_FACTORS = (0.4, 0.6, 1.0, 1.25, 1.3, 1.7, 2.0, 2.4, 3.0, 4.0)
#: Factors beside a size: most are not the ratio of the sizes.
_BESIDE = (None, 1.0, 0.37, 1.7, 2.0, 4.0, 0.01, 1e-6, 1e9, -1.0, 0.0, float("nan"), float("inf"))
_RESULTS = ((3, 4, 5), (6, 5, 4), (5, 10, 2), (8, 3, 9), (2, 1, 13), (12, 7, 10))


def interpolations() -> Iterator[Group]:
    """Every mode by sizes and by factors, ``align_corners``, ``antialias``."""
    for dims in (1, 2, 3):
        shapes = [(2, 2, *side[:dims]) for side in _SIDES]
        for mode in ("nearest", "nearest-exact", *_MODES[dims]):
            corners = [None] if "nearest" in mode else [False, True]
            for align, factor in itertools.product(corners, _FACTORS):
                sides = {factor, *((factor, *(1.3,) * (dims - 1)), (1, *(factor,) * (dims - 1))) * (dims > 1)}
                for scale in sorted(sides, key=str):
                    yield _interpolation(mode, shapes, scale_factor=scale, align_corners=align)
            for align, size in itertools.product(corners, [(1, 1, 1), (3, 4, 5), (5, 7, 2), (12, 6, 9), (41, 3, 10)]):
                for dtype in FLOATS:
                    yield _interpolation(mode, shapes, dtype, size=size[:dims], align_corners=align)
    for mode, align in itertools.product(("bilinear", "bicubic"), (False, True)):
        for options in ({"size": (3, 9)}, {"size": (8, 2)}, {"scale_factor": 0.4}, {"scale_factor": (1.3, 0.6)}):
            shapes = [(2, 2, *side[:2]) for side in _SIDES if min(side) > 1]
            yield _interpolation(mode, shapes, align_corners=align, antialias=True, **options)
    for name in _UPSAMPLERS:
        for dtype, align in itertools.product(FLOATS, (False,) if "nearest" in name else (False, True)):
            yield _upsampling(name, dtype, align)


#: Operators that take sizes and factors, as the modes that :func:`torch.nn.functional.interpolate` calls them by.
_UPSAMPLERS = {
    **{f"upsample_nearest{dims}d": "nearest" for dims in (1, 2, 3)},
    **{f"_upsample_nearest_exact{dims}d": "nearest-exact" for dims in (1, 2, 3)},
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_bicubic2d": "bicubic",
    "upsample_trilinear3d": "trilinear",
}


def _upsampling(name: str, dtype: torch.dtype, align: bool) -> Group:
    """An operator with sizes and factors of their own, which need not fit each other."""
    overload, dims = getattr(torch.ops.aten, name).default, int(name[-2])
    options = () if "nearest" in name else (align,)
    mode = _UPSAMPLERS[name]
    return Group(
        _label(f"upsample {mode} {dims}d", dtype, f"{align} sizes and factors"),
        lambda x, size, factors: overload(x, size, *options, *factors),
        lambda turn: [
            (
                numbers((2, 2, *side), "normal", dtype, turn=turn),
                list(result),
                [_BESIDE[(at + 5 * d + turn) % 13] for d in range(dims)],
            )
            for side in redrawn([each[:dims] for each in _SIDES[::3]], turn)
            for at, result in enumerate(redrawn([each[:dims] for each in _RESULTS], turn))
        ],
    )


def _interpolation(mode: str, shapes: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Group:
    return Group(
        _label(f"interpolate {mode} {len(shapes[0]) - 2}d", dtype, options),
        lambda x: F.interpolate(x, mode=mode, **options),
        _sources(shapes, dtype, ("normal", "ties", "huge"), free=slice(2, None)),
    )


# ---- moving elements ----


def paddings() -> Iterator[Group]:
    """``pad`` in every mode, ``unfold``, ``fold``, ``pixel_shuffle`` and its kin, rolls, flips, triangles and more."""
    pads = {2: [(1, 2, 0, 3), (3, 1, 2, 2), (-1, 1, 2, -1)]}
    pads[1] = [(1, 2), (0, 3), (2, 0), (-1, 2), (-1, -1), (-9, 4), (4, -9)]
    pads[3] = [(1, 2, 0, 3, 2, 1), (1, 1, -1, 2, 0, 0)]
    for dims, mode in itertools.product((1, 2, 3), ("constant", "reflect", "replicate", "circular")):
        for pad, dtype in itertools.product(pads[dims], FLOATS):
            values: list[Any] = [0.0, 1.5, float("inf")] if mode == "constant" else [None]
            for value in values:
                yield Group(
                    _label(f"pad {mode} {dims}d", dtype, (pad, value)),
                    lambda x, pad=pad, mode=mode, value=value: F.pad(x, pad, mode, value),
                    _of_images(dims, dtype, ("normal", "special")),
                    orders=2,
                )
    for kernel, dilation, padding, stride in itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 2)):
        options = (kernel, dilation, padding, stride)
        yield Group(
            _label("unfold", torch.float32, options),
            lambda x, options=options: F.unfold(x, *options),
            _of_images(2, torch.float32, ("normal", "special")),
            orders=2,
        )
        yield Group(
            _label("fold", torch.float32, options),
            lambda x, options=options: F.fold(F.unfold(x, *options), x.shape[-2:], *options),
            _of_images(2, torch.float32, ("normal",)),
        )
    moves: dict[str, Callable[..., Any]] = {
        **{f"pixel_shuffle {r}": lambda x, r=r: F.pixel_shuffle(x.repeat_interleave(r * r, 1), r) for r in (1, 2, 3)},
        **{f"pixel_unshuffle {r}": lambda x, r=r: F.pixel_unshuffle(x.repeat(1, 1, r, r), r) for r in (1, 2, 3)},
        **{f"roll {s} {d}": lambda x, s=s, d=d: x.roll(s, d) for s in (1, -2, 9) for d in (0, 2, -1)},
        **{f"rot90 {k}": lambda x, k=k: x.rot90(k, (1, 3)) for k in (-1, 1, 2, 3)},
        **{f"{n} {k}": lambda x, n=n, k=k: getattr(x, n)(k) for n in ("tril", "triu") for k in (-9, -1, 0, 2, 9)},
        **{f"diagonal {k}": lambda x, k=k: x.diagonal(k, 2, 3) for k in (-2, 0, 3)},
        **{f"diag_embed {k}": lambda x, k=k: torch.diag_embed(x, k) for k in (-2, 0, 3)},
        **{f"unfold {k} {s}": lambda x, k=k, s=s: x.unfold(2, k, s) * 1 for k in (1, 2, 4) for s in (1, 2, 3)},
        "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
        "flip": lambda x: x.flip(0, 3),
        "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2], device=x.device), 1),
    }
    for (name, move), dtype in itertools.product(moves.items(), (*FLOATS, torch.int64, torch.uint8, torch.bool)):
        kinds = ("normal", "special") if dtype.is_floating_point else ("normal", "huge")
        yield Group(_label(name, dtype, ""), move, _of_images(2, dtype, kinds, batched=True), orders=2)
    for mode, fill, align in itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        yield Group(
            _label("grid_sample", torch.float32, (mode, fill, align)),
            lambda x, at, mode=mode, fill=fill, align=align: F.grid_sample(x, at, mode, fill, bool(align)),
            lambda turn: [
                (numbers(s, k, turn=turn), numbers((s[0], 4, 3, 2), k, seed=1, turn=turn))
                for s in redrawn(_images(2)[2:-3], turn, slice(-2, None))
                for k in ("normal", "ties", "constant")
            ],
        )


# ---- norms ----


def norms() -> Iterator[Group]:
    """Normalizations, variances, norms and softmax of all kinds of data."""
    shapes = [(a, 6, b) for a in (2, 3, 4, 5, 7) for b in (3, 5, 9, 17, 33, 130)] + [(3, 6, 1), (1, 6, 17)]
    kinds, sizes = ("normal", "ties", "constant", "special"), {"free": slice(None, None, 2), "high": 40}
    functions: dict[str, Callable[..., Any]] = {
        "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
        "layer_norm last": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "instance_norm": lambda x: F.instance_norm(x),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "group_norm 1": lambda x: F.group_norm(x, 1),
        "group_norm 3": lambda x: F.group_norm(x, 3),
        "group_norm 6": lambda x: F.group_norm(x, 6),
        "local_response_norm": lambda x: F.local_response_norm(x, 3),
        "softmax": lambda x: x.softmax(1),
        "log_softmax": lambda x: x.log_softmax(-1),
        "softmin": lambda x: F.softmin(x, 0),
        "logsumexp": lambda x: x.logsumexp((0, 2)),
        "logcumsumexp": lambda x: x.logcumsumexp(1),
        **{f"normalize {p}": lambda x, p=p: F.normalize(x, p, 1) for p in (1.0, 2.0, 3.0, float("inf"))},
        **{
            f"norm {p} {d}": lambda x, p=p, d=d: torch.linalg.vector_norm(x, p, d)
            for p in (0, 1, 2, 3, 0.5, -1, float("inf"), -float("inf"))
            for d in (None, 1, (0, 2))
        },
        **{f"renorm {p}": lambda x, p=p: x.renorm(p, 1, 0.5) for p in (1, 2, float("inf"))},
    }
    for (name, function), dtype in itertools.product(functions.items(), FLOATS):
        yield Group(_label(name, dtype, ""), function, _sources(shapes, dtype, kinds, **sizes), orders=2)
    spreads = {"var": torch.var, "std": torch.std, "var_mean": torch.var_mean, "std_mean": torch.std_mean}
    grid = itertools.product(spreads, (None, 0, 1, (0, 2), -1), (0, 1, 2), (False, True), FLOATS)
    for name, dim, correction, keep, dtype in grid:
        options = {"dim": dim, "correction": correction, "keepdim": keep}
        yield Group(
            _label(name, dtype, options),
            lambda x, name=name, options=options: spreads[name](x, **options),
            _sources(shapes, dtype, KINDS, **sizes),
        )


# ---- losses ----


def losses() -> Iterator[Group]:
    """Every loss with every reduction, weights, targets that are right and wrong."""
    shapes = [*((n, 5) for n in range(1, 10)), (3, 5, 2), (4, 5, 3), (2, 5, 7)]

    def drawn(turn: int) -> list[tuple[int, ...]]:
        return redrawn(shapes, turn, slice(0, None, 2), high=40)

    def pairs(turn: int) -> list[Source]:
        kinds = ("normal", "ties", "huge", "special")
        return [tuple(numbers(s, k, seed=n, turn=turn) for n in (0, 1)) for s in drawn(turn) for k in kinds]

    def narrow(turn: int) -> list[Source]:
        return [tuple(x.bfloat16() for x in pair) for pair in pairs(turn)[:16]]

    def chances(turn: int) -> list[Source]:
        found: list[Source] = [
            (numbers(s, seed=1, turn=turn).sigmoid(), numbers(s, seed=2, turn=turn).sigmoid().mul(times).round() / 8)
            for s in drawn(turn)
            for times in (8, 12)
        ]
        wrong = [2.0, -1.0, float("nan")]
        return found + [(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([1.0, 0.0, one])) for one in wrong]

    def signs(turn: int) -> list[Source]:
        return [
            (numbers(s, seed=2, turn=turn), numbers(s, seed=3, turn=turn), numbers(s, turn=turn).sign())
            for s in drawn(turn)
        ]

    for reduction in ("none", "mean", "sum"):
        of_pairs: dict[str, Callable[..., Any]] = {
            "l1": lambda x, y, r=reduction: F.l1_loss(x, y, reduction=r),
            "mse": lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r),
            **{
                f"smooth_l1 {b}": lambda x, y, b=b, r=reduction: F.smooth_l1_loss(x, y, reduction=r, beta=b)
                for b in (0.0, 0.5, 1.0, 3.0)
            },
            **{
                f"huber {b}": lambda x, y, b=b, r=reduction: F.huber_loss(x, y, reduction=r, delta=b)
                for b in (0.5, 1.0, 3.0)
            },
            "kl_div": lambda x, y, r=reduction: F.kl_div(x, y, reduction=r),
            "kl_div log": lambda x, y, r=reduction: F.kl_div(x, y, reduction=r, log_target=True),
            "poisson": lambda x, y, r=reduction: F.poisson_nll_loss(x, y, reduction=r),
            "poisson full": lambda x, y, r=reduction: F.poisson_nll_loss(x, y.abs(), False, True, reduction=r),
            "gaussian": lambda x, y, r=reduction: F.gaussian_nll_loss(x, y, y.abs(), full=True, reduction=r),
            "soft_margin": lambda x, y, r=reduction: F.soft_margin_loss(x, y.sign(), reduction=r),
            "hinge_embedding": lambda x, y, r=reduction: F.hinge_embedding_loss(x, y.sign(), reduction=r),
            "bce logits": lambda x, y, r=reduction: F.binary_cross_entropy_with_logits(x, y, reduction=r),
            "bce logits weights": lambda x, y, r=reduction: F.binary_cross_entropy_with_logits(
                x, y, x.detach().abs(), r and None, None, r, y.detach().abs()
            ),
            "multilabel_soft_margin": lambda x, y, r=reduction: F.multilabel_soft_margin_loss(x, y, reduction=r),
            "cosine": lambda x, y: F.cosine_similarity(x, y, 1),
            "pairwise": lambda x, y: F.pairwise_distance(x, y, 2.0),
        }
        for name, loss in of_pairs.items():
            yield Group(_label(name, torch.float32, reduction), loss, pairs, orders=2)
            yield Group(_label(name, torch.bfloat16, reduction), loss, narrow)
        for name, loss in (
            ("bce", lambda x, y, r=reduction: F.binary_cross_entropy(x, y, reduction=r)),
            ("bce weighted", lambda x, y, r=reduction: F.binary_cross_entropy(x, y, x.detach(), reduction=r)),
        ):
            yield Group(_label(name, torch.float32, reduction), loss, chances)
        for name, loss in (
            ("margin_ranking", lambda x, y, s, r=reduction: F.margin_ranking_loss(x, y, s, 0.5, reduction=r)),
            ("triplet", lambda x, y, s, r=reduction: F.triplet_margin_loss(x, y, s, reduction=r)),
        ):
            yield Group(_label(name, torch.float32, reduction), loss, signs)
        yield from _class_losses(reduction)


def _class_losses(reduction: str) -> Iterator[Group]:
    shapes = [(4, 5), (1, 5), (7, 5), (3, 5), (3, 5, 2), (2, 5, 3), (2, 5, 3, 2), (3, 5, 2, 4)]

    def targets(shape: tuple[int, ...], wrong: int | None, turn: int) -> Tensor:
        generator = torch.Generator().manual_seed(turn * 100_003 + len(shape))
        found = torch.randint(0, 5, (shape[0], *shape[2:]), generator=generator)
        if wrong is not None:
            found.view(-1)[0] = wrong
        return found

    for ignore, smoothing, weighted in itertools.product((-100, 1), (0.0, 0.1), (False, True)):

        def sources(turn: int, ignore: int = ignore) -> list[Source]:
            return [
                (numbers(s, k, turn=turn), targets(s, wrong, turn), numbers((5,), seed=4, turn=turn).abs())
                for s in redrawn(shapes, turn, slice(0, None, 2))
                for k in ("normal", "ties", "huge")
                for wrong in (None, ignore, 5, -1)
            ]

        yield Group(
            _label("cross_entropy", torch.float32, (reduction, ignore, smoothing, weighted)),
            lambda x, y, w, weighted=weighted, ignore=ignore, smoothing=smoothing: F.cross_entropy(
                x,
                y,
                w.detach() if weighted else None,
                ignore_index=ignore,
                reduction=reduction,
                label_smoothing=smoothing,
            ),
            sources,
        )
        if not smoothing:
            yield Group(
                _label("nll_loss", torch.float32, (reduction, ignore, weighted)),
                lambda x, y, w, weighted=weighted, ignore=ignore: F.nll_loss(
                    x, y, w.detach() if weighted else None, ignore_index=ignore, reduction=reduction
                ),
                sources,
            )
    for margin, p in itertools.product((0.5, 1.0), (1, 2)):
        yield Group(
            _label("multi_margin", torch.float32, (reduction, margin, p)),
            lambda x, y, margin=margin, p=p: F.multi_margin_loss(x, y, p, margin, reduction=reduction),
            lambda turn: [
                (numbers(s, k, turn=turn), targets(s, w, turn))
                for s in redrawn(shapes[:4], turn, slice(0, 1))
                for k in ("normal", "ties", "constant")
                for w in (None, 5, -1)
            ],
        )
    yield Group(
        _label("multilabel_margin", torch.float32, reduction),
        lambda x, y: F.multilabel_margin_loss(x, y, reduction=reduction),
        lambda turn: [
            (numbers(s, turn=turn), torch.tensor([[0, 3, -1, 1, 2]]).expand(s))
            for s in redrawn(shapes[:4], turn, slice(0, 1))
        ],
    )


# ---- arithmetic with numbers ----

_NUMBERS = (
    0, 1, -1, 2, 3, 7, -5, 127, 128, 255, 256, 2047, 2049, 65504, 65536, 16777217, 2**31 - 1, 2**53 + 1,
    0.0, -0.0, 0.1, 0.5, 1.7, -2.3, 0.3333333, 1e-8, 1e-30, 1e30, 3.4e38, 1e300, 65519.0, 65520.0, 1.0009765625,
    float("inf"), -float("inf"), float("nan"),
)  # fmt: skip
_WITH_NUMBER: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "div")},
    **{name: getattr(torch, name) for name in ("floor_divide", "remainder", "fmod", "pow", "clamp_min", "clamp_max")},
    "rsub": lambda x, n: n - x,
    "rdiv": lambda x, n: n / x,
    "rpow": lambda x, n: torch.pow(n, x),
    "add alpha": lambda x, n: torch.add(x, x + 3, alpha=n),
    "sub alpha": lambda x, n: torch.sub(x, x + 3, alpha=n),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "isin": lambda x, n: torch.isin(x, n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "where le": lambda x, n: torch.where(x <= n, 1, 0),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "full_like": lambda x, n: torch.full_like(x, n) == n,
    "hardshrink": lambda x, n: F.hardshrink(x, n),
    "softshrink": lambda x, n: F.softshrink(x, abs(n)),
    "threshold": lambda x, n: F.threshold(x, n, 1),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "elu": lambda x, n: F.elu(x, n),
    "xlogy": lambda x, n: torch.xlogy(x, n),
    "float_power": lambda x, n: torch.float_power(x, n),
    "nan_to_num": lambda x, n: x.nan_to_num(n),
    "bitwise_and": lambda x, n: torch.bitwise_and(x, n),
    "bitwise_or": lambda x, n: torch.bitwise_or(x, n),
    "lshift": lambda x, n: torch.bitwise_left_shift(x, n),
    "rshift": lambda x, n: torch.bitwise_right_shift(x, n),
    "copysign": lambda x, n: torch.copysign(x, n),
    "lerp": lambda x, n: torch.lerp(x, x + 1, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "logical_and": lambda x, n: torch.logical_and(x, torch.full((), n, device=x.device)),
    "heaviside": lambda x, n: torch.heaviside(x, torch.full((), n, dtype=x.dtype, device=x.device)),
}  # fmt: skip


def arithmetic() -> Iterator[Group]:
    """Every dtype with numbers that it holds, that it rounds, and that it does not hold."""
    for (name, function), dtype in itertools.product(_WITH_NUMBER.items(), (*FLOATS, *INTEGERS, torch.bool)):
        kinds = ("normal", "huge", "special", "tiny") if dtype.is_floating_point else ("normal", "huge")
        for is_float in (False, True):
            found = [n for n in _NUMBERS if isinstance(n, float) == is_float]
            yield Group(
                _label(name, dtype, "float" if is_float else "int"),
                function,
                lambda turn, found=found, kinds=kinds, dtype=dtype: [
                    (numbers(shape, kind, dtype, turn=turn), n)
                    for n in found
                    for kind in kinds
                    for shape in redrawn([(2,), (3,), (5,), (9,), (18,), (37,)], turn, high=70)
                ],
            )


_BINARY = (
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum", "fmax", "fmin", "eq",
    "ne", "lt", "le", "gt", "ge", "atan2", "hypot", "copysign", "nextafter", "logaddexp", "logaddexp2", "xlogy",
    "ldexp", "heaviside", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    "logical_and", "logical_or", "logical_xor", "gcd", "lcm", "dist", "float_power",
)  # fmt: skip


def pairs() -> Iterator[Group]:
    """Functions of two tensors, of every pair of dtypes."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
    for name, (one, other) in itertools.product(_BINARY, itertools.product(dtypes, dtypes)):
        function: Any = getattr(torch, name)
        shapes: list[Any] = [((n,), (n,)) for n in (2, 3, 5, 7, 9, 15, 16, 17, 31, 37, 64, 100)]
        shapes += [
            ((3, 5), (5,)),
            ((7, 4), (4,)),
            ((), (4,)),
            ((), (9,)),
            ((4, 1), (1, 6)),
            ((3, 1), (1, 5)),
            ((0,), (0,)),
        ]
        kinds = (
            ("normal", "huge", "special") if one.is_floating_point or other.is_floating_point else ("normal", "huge")
        )
        yield Group(
            _label(name, one, other),
            function,
            lambda turn, shapes=shapes, kinds=kinds, one=one, other=other: [
                (numbers(both[: len(a)], k, one, turn=turn), numbers(both[len(a) :], k, other, 1, turn))
                for (a, _), both in zip(shapes, redrawn([(*a, *b) for a, b in shapes], turn, high=70), strict=True)
                for k in kinds
            ],
        )


# ---- functions of one tensor ----

_UNARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(F, name)
        for name in (
            "relu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "tanhshrink",
            "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "logsigmoid", "leaky_relu", "glu",
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            "abs", "sign", "sgn", "neg", "ceil", "floor", "round", "trunc", "frac", "sqrt", "rsqrt", "square",
            "reciprocal", "sigmoid", "tanh", "exp", "expm1", "log1p", "isnan", "isinf", "isfinite", "signbit",
            "logical_not", "bitwise_not", "nan_to_num", "sinc", "logit", "erf", "erfc", "erfinv", "asinh", "atanh",
            "acosh", "sinh", "cosh", "atan", "asin", "acos", "log", "log2", "log10", "exp2", "deg2rad", "rad2deg",
            "positive",
        )
    },
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus 2 3": lambda x: F.softplus(x, 2, 3),
    "hardtanh -2 3": lambda x: F.hardtanh(x, -2, 3),
    "logit eps": lambda x: torch.logit(x, 0.1),
    "round 2": lambda x: torch.round(x, decimals=2),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype, device=x.device)),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "glu 0": lambda x: F.glu(torch.cat([x, x]), 0),
    **{f"to {d}": lambda x, d=d: x.to(d) for d in (*FLOATS, *INTEGERS, torch.bool)},
}  # fmt: skip


def unary() -> Iterator[Group]:
    """Activations and functions, of every dtype and kind of data."""
    shapes = [*((n,) for n in (2, 3, 5, 7, 9, 15, 16, 17, 31, 33, 64, 70)), (4, 38), (2, 0), (3, 2, 8)]
    for (name, function), dtype in itertools.product(_UNARY.items(), (*FLOATS, *INTEGERS, torch.bool)):
        kinds = KINDS if dtype.is_floating_point else ("normal", "huge")
        if name.startswith("to ") and dtype.is_floating_point:
            kinds = ("normal", "ties", "constant")  # what a number out of range becomes is not said
        yield Group(_label(name, dtype, ""), function, _sources(shapes, dtype, kinds, high=70), orders=2)


# ---- reductions ----


def reductions() -> Iterator[Group]:
    """Reductions and cumulative operators: dims, keepdim, dtype."""
    shapes = [(a, b, c) for a in (2, 3, 5) for b in (2, 4, 6) for c in (3, 5, 17, 33)]
    shapes += [(3, 1, 7), (1, 6, 17), (2, 0, 3)]
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
    for name, dim, keep, dtype in itertools.product(
        ("sum", "nansum", "mean", "nanmean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "max", "min",
         "count_nonzero", "logsumexp", "median", "aminmax"),
        (None, 0, 1, -1, (0, 2), (0, 1, 2)), (False, True), dtypes,
    ):  # fmt: skip
        if isinstance(dim, tuple) and name in ("prod", "argmax", "argmin", "max", "min", "median", "aminmax"):
            continue
        if (dim is None and keep) or (name == "count_nonzero" and keep):
            continue
        options = () if dim is None else ((dim,) if name == "count_nonzero" else (dim, keep))
        function: Any = getattr(torch, name)
        if name == "aminmax":
            function = lambda x, dim=None, keepdim=False: torch.aminmax(x, dim=dim, keepdim=keepdim)  # noqa: E731
        kinds = KINDS[:3] + KINDS[4:] if dtype.is_floating_point else ("normal", "huge")
        yield Group(
            _label(name, dtype, options),
            lambda x, function=function, options=options: function(x, *options),
            _sources(shapes, dtype, kinds),
        )
    for name, wanted, dtype in itertools.product(
        ("sum", "mean", "prod", "cumsum", "cumprod", "softmax", "log_softmax", "nansum"),
        (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8), dtypes,
    ):  # fmt: skip
        if dtype.is_floating_point and not wanted.is_floating_point:
            continue
        for dim in (0, 2):
            function = getattr(torch, name)
            yield Group(
                _label(name, dtype, (dim, wanted)),
                lambda x, function=function, dim=dim, wanted=wanted: function(x, dim, dtype=wanted),
                _sources(shapes, dtype, ("normal", "ties") if dtype.is_floating_point else ("normal",)),
            )
    for name, dim, dtype in itertools.product(
        ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), (0, 1, 2), dtypes
    ):
        function = getattr(torch, name)
        yield Group(
            _label(name, dtype, dim),
            lambda x, function=function, dim=dim: function(x, dim),
            _sources(shapes, dtype, ("normal", "ties", "constant") if dtype.is_floating_point else ("normal",)),
        )


# ---- indices ----


def _indices(size: int) -> list[Tensor]:
    """Indices into ``size`` elements: none, one, many, without dimensions, twice the same, negative, out of range."""
    lists: list[Any] = [[], [0], [size - 1], 0, size - 1, [0, 0, size - 1], [size - 1, 0, 1], [-1], [0, -2], [size], -1]
    return [torch.tensor(found, dtype=torch.int64) for found in lists]


def indexing() -> Iterator[Group]:
    """Operators with indices: without dimensions, none, negative, twice the same, out of range."""
    shapes = [*((a, b) for a in (2, 3, 4, 7) for b in (2, 3, 6)), (3, 2, 5), (5, 4, 2), (2, 7, 3)]
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool)

    def part(x: Tensor, dim: int, i: Tensor) -> Tensor:
        sizes = list(x.shape)
        sizes[dim] = i.numel()
        return torch.ones(sizes, dtype=x.dtype, device=x.device)

    functions: dict[str, Callable[..., Any]] = {
        "index_select": lambda x, i, d: x.index_select(d, i),
        "index_fill": lambda x, i, d: x.index_fill(d, i, 1),
        "index_add": lambda x, i, d: x.index_add(d, i, part(x, d, i)),
        "index_add 2": lambda x, i, d: x.index_add(d, i, part(x, d, i), alpha=2),
        "index_copy": lambda x, i, d: x.index_copy(d, i, part(x, d, i)),
        "index": lambda x, i, d: x[(slice(None),) * d + (i,)],
        "index_put": lambda x, i, d: x.index_put((i,), x.new_ones(())),
        "index_put add": lambda x, i, d: x.index_put((i,), x.new_ones(()), accumulate=True),
        "take": lambda x, i, d: x.take(i),
        "put": lambda x, i, d: x.put(i, torch.ones(i.shape, dtype=x.dtype, device=x.device), accumulate=True),
        "embedding": lambda x, i, d: F.embedding(i, x.flatten(1)),
        "one_hot": lambda x, i, d: F.one_hot(i, 4),
        "bincount": lambda x, i, d: torch.bincount(i.reshape(-1)),
        "scatter value": lambda x, i, d: x.scatter(d, _spread(x, i), 1),
        "scatter_add": lambda x, i, d: x.scatter_add(d, _spread(x, i), torch.ones_like(x)),
        "gather": lambda x, i, d: x.gather(d, _spread(x, i)),
        "take_along_dim": lambda x, i, d: x.take_along_dim(_spread(x, i), d),
        **{
            f"scatter_reduce {r} {s}": lambda x, i, d, r=r, s=s: x.scatter_reduce(
                d, _spread(x, i), torch.ones_like(x), r, include_self=s
            )
            for r in ("sum", "prod", "mean", "amax", "amin")
            for s in (True, False)
        },
        **{
            f"index_reduce {r} {s}": lambda x, i, d, r=r, s=s: x.index_reduce(
                d, i, part(x, d, i), r, include_self=s
            )
            for r in ("prod", "mean", "amax", "amin")
            for s in (True, False)
        },
    }  # fmt: skip
    for (name, function), dtype, dim in itertools.product(functions.items(), dtypes, (0, 1)):
        kinds = ("normal", "ties") if dtype.is_floating_point else ("normal",)
        yield Group(
            _label(name, dtype, dim),
            lambda x, i, function=function, dim=dim: function(x, i, dim),
            lambda turn, dtype=dtype, dim=dim, kinds=kinds: [
                (numbers(s, k, dtype, turn=turn), i)
                for s in redrawn(shapes, turn)
                for k in kinds
                for i in _indices(s[dim])
            ],
        )


def _spread(x: Tensor, index: Tensor) -> Tensor:
    """An index of as many dimensions as ``x`` has, each of the sizes of ``index`` or 1."""
    return index.reshape(-1, *[1] * (x.dim() - 1)) if index.dim() else index.reshape([1] * x.dim())


#: Family -> its groups.
FAMILIES: dict[str, Callable[[], Iterator[Group]]] = {
    "average pools": averages,
    "maximum pools": maxima,
    "other pools": other_pools,
    "interpolation": interpolations,
    "moves": paddings,
    "norms": norms,
    "losses": losses,
    "numbers": arithmetic,
    "pairs": pairs,
    "unary": unary,
    "reductions": reductions,
    "indices": indexing,
}
