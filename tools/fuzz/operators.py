# SPDX-License-Identifier: Apache-2.0
"""The catalogue: for every operator a function that draws operands and arguments and returns the line that calls it.

Elementwise operators, reductions and views are tables of names. What needs operands of its own kind is in ``special``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tools.fuzz import allowed
from tools.fuzz.generate import ANY, FLOAT, INT, NUMBER, Generator, Refused
from tools.fuzz.program import tensors

Build = Callable[[Generator], str]
OPERATORS: dict[str, Build] = {}

_OUTS = ("right", "permuted", "gaps", "empty", "wrong size", "expanded", "another dtype")
_STYLES = ("plain",) * 6 + ("in-place",) * 3 + ("out",) * 2 + ("gradient",) * 3


def operator(name: str) -> Callable[[Build], Build]:
    """Enters a drawing function into the catalogue."""

    def enter(build: Build) -> Build:
        assert name not in OPERATORS, name
        OPERATORS[name] = build
        return build

    return enter


def call(
    g: Generator,
    function: str,
    operands: Sequence[str],
    rest: str = "",
    *,
    method: str = "",
    out: bool = False,
    grad: bool = True,
) -> str:
    """A call in one of its styles: plain, in-place by ``method``, into ``out=``, or the gradient."""
    style = g.pick(_STYLES)
    if style == "in-place" and method:
        return f"{operands[0]}.{method}({', '.join([*operands[1:], *filter(None, [rest])])})"
    if style == "gradient" and grad and all(_differentiable(g, x) for x in operands[:1]):
        return gradient(function, operands, rest)
    line = f"{function}({', '.join([*operands, *filter(None, [rest])])})"
    if style == "out" and out:
        return with_out(g, line)
    return line


def gradient(function: str, operands: Sequence[str], rest: str = "") -> str:
    """The gradient of ``function(*operands, rest)``."""
    names = [f"a{i}" for i in range(len(operands))]
    inner = f"{function}({', '.join([*names, *filter(None, [rest])])})"
    return f"gradient(lambda {', '.join(names)}: {inner}, {', '.join(operands)})"


def with_out(g: Generator, line: str) -> str:
    """The call with ``out=`` tensors that already are something, fitting or not."""
    try:
        result = g.evaluate(line)
    except Exception as error:
        raise Refused from error
    form = g.pick(_OUTS)
    layout = form if form in ("permuted", "gaps", "expanded") else "dense"
    outs = []
    for x in tensors(result):
        dtype = g.pick(ANY) if form == "another dtype" else str(x.dtype).removeprefix("torch.")
        shape = list(x.shape)
        if form == "wrong size":
            shape = [*shape[:-1], 2 + (shape or [1])[-1]]
        shape = [0] if form == "empty" else shape
        outs.append(g.leaf(dtype, shape, layout, True))
    target = outs[0] if isinstance(result, torch.Tensor) else f"({', '.join(outs)})"
    return f"{line[:-1]}, out={target})"


def _differentiable(g: Generator, name: str) -> bool:
    return g.value(name).is_floating_point() or g.value(name).is_complex()


def number(g: Generator) -> str:
    """A Python number of some kind."""
    kind = g.pick(("int", "int", "int", "float", "float", "float", "bool", "complex"))
    if kind == "bool":
        return str(g.chance(0.5))
    if kind == "complex":
        return str(complex(g.free.randint(-3, 5), g.free.randint(-3, 5)))
    return str(g.free.randint(-3, 5)) if kind == "int" else str(round(g.free.uniform(-3, 3), 3))


def dim_of(g: Generator, name: str, least: int = 1) -> int:
    """A dimension, counted from either end."""
    rank = g.value(name).dim()
    if rank < least:
        raise Refused
    return int(g.kind.randrange(-rank, rank)) if rank else int(g.pick((0, -1)))


def part_of(g: Generator, size: int) -> int:
    """A size up to that of a dimension, which is 1 as part of the kind of the call."""
    single = g.chance(0.2)
    return 1 if single or size < 2 else g.free.randint(2, size)


def broadcast_shape(g: Generator, name: str) -> list[int]:
    """A shape that broadcasts with the operand's: some dimensions 1, some leading ones left out."""
    shape = list(g.value(name).shape)
    form = g.pick(("same", "same", "same", "ones", "tail", "scalar"))
    if form == "ones":
        return [1 if g.chance(0.5) else n for n in shape]
    if form == "tail" and shape:
        return shape[g.kind.randrange(len(shape)) :]
    return shape if form != "scalar" else []


def second(g: Generator, name: str, dtypes: Sequence[str] = ANY, **options: object) -> str:
    """The second operand of a binary operator: a tensor, a tensor of one element on the CPU, or a number."""
    kind = g.pick(("tensor",) * 6 + ("number", "number", "cpu scalar"))
    if kind == "number":
        return number(g)
    if kind == "cpu scalar":
        return f"torch.tensor({number(g)}, dtype=torch.{g.pick(dtypes)})"
    return g.tensor(dtypes, shape=broadcast_shape(g, name), **options)  # type: ignore[arg-type]


# Elementwise functions of one tensor: function, dtypes, whether there is a method with "_".
_UNARY = {
    ANY: "sgn sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh"
    " acosh atanh"
    " sigmoid erf erfc erfinv lgamma digamma deg2rad rad2deg sinc reciprocal sign logical_not square i0 logit",
    NUMBER: "abs neg ceil floor trunc round positive nan_to_num relu isposinf isneginf",
    FLOAT: "frac",
    (*INT, "bool"): "bitwise_not",
}
_WITHOUT_METHOD = ("positive", "isposinf", "isneginf")
_NO_GRADIENT = ("sign", "logical_not", "bitwise_not", "isposinf", "isneginf")


def _enter_unary(name: str, dtypes: Sequence[str]) -> None:
    method = "" if name in _WITHOUT_METHOD else f"{name}_"

    @operator(name)
    def build(g: Generator) -> str:
        rest = "decimals=2" if name == "round" and g.chance(0.2) else ""
        x = g.tensor(FLOAT if rest else dtypes)
        return call(g, f"torch.{name}", [x], rest, method=method, out=name != "relu", grad=name not in _NO_GRADIENT)


for _dtypes, _names in _UNARY.items():
    for _name in _names.split():
        _enter_unary(_name, _dtypes)


def _enter_plain(name: str, function: str, dtypes: Sequence[str], *, out: bool, grad: bool, rest: str = "") -> None:
    @operator(name)
    def build(g: Generator) -> str:
        return call(g, function, [g.tensor(dtypes)], rest, out=out, grad=grad)


for _name in ["isnan", "isinf", "isfinite", "signbit"]:
    _enter_plain(_name, f"torch.{_name}", ANY, out=_name == "signbit", grad=False)
for _name in ["isreal", "is_nonzero_count"][:1]:
    _enter_plain(_name, f"torch.{_name}", ANY, out=False, grad=False)
for _name in [
    "entr",
    "ndtr",
    "ndtri",
    "erfcx",
    "i0e",
    "i1",
    "i1e",
    "psi",
    "gammaln",
    "expit",
    "log1p",
    "exp2",
    "expm1",
    "erf",
]:
    _enter_plain(f"special.{_name}", f"torch.special.{_name}", ANY, out=True, grad=True)
_enter_plain("special.log_ndtr", "torch.special.log_ndtr", ANY, out=True, grad=True)
for _name in [
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
    "airy_ai",
]:
    _enter_plain(
        f"special.{_name}", f"torch.special.{_name}", ("float32", "float64", *INT, "bool"), out=True, grad=False
    )


@operator("polygamma")
def _polygamma(g: Generator) -> str:
    return f"torch.polygamma({g.pick((0, 1, 2))}, {g.tensor(ANY)})"


@operator("mvlgamma")
def _mvlgamma(g: Generator) -> str:
    return call(g, "torch.mvlgamma", [g.tensor(FLOAT, limits=(2, 9))], "2", method="mvlgamma_")


_ACTIVATIONS = {
    "relu6": "", "elu": "alpha=0.7", "selu": "", "celu": "alpha=1.3", "silu": "", "mish": "", "hardtanh": "-0.5, 1.5",
    "hardsigmoid": "", "hardswish": "", "threshold": "0.1, 2.0", "leaky_relu": "0.2", "relu": "",
}  # fmt: skip
for _name, _rest in _ACTIVATIONS.items():
    for _suffix, _more in (("", _rest), (" in place", ", ".join(filter(None, [_rest, "inplace=True"])))):

        def _activation(g: Generator, name: str = _name, rest: str = _more, inplace: bool = bool(_suffix)) -> str:
            x = g.tensor((*FLOAT, *FLOAT, *FLOAT, *INT))
            return f"F.{name}({x}, {rest})" if inplace else call(g, f"F.{name}", [x], rest)

        OPERATORS[f"F.{_name}{_suffix}"] = _activation
for _name, _rest in {
    "gelu": "", "gelu tanh": "approximate='tanh'", "hardshrink": "0.4", "softshrink": "0.3", "tanhshrink": "",
    "logsigmoid": "", "softplus": "beta=1.5, threshold=4", "softsign": "",
}.items():  # fmt: skip
    _enter_plain(f"F.{_name}", f"F.{_name.split()[0]}", FLOAT, out=False, grad=True, rest=_rest)

# Elementwise functions of two tensors: dtypes; all have a method with "_" and out= but those named below.
_BINARY = {
    ANY: "add mul true_divide atan2 maximum minimum fmax fmin logaddexp logaddexp2 xlogy logical_and logical_or"
    " logical_xor eq ne lt le gt ge float_power div pow special.xlog1py copysign",
    NUMBER: "sub floor_divide remainder fmod hypot",
    FLOAT: "nextafter",
    INT: "gcd lcm bitwise_left_shift bitwise_right_shift",
    (*INT, "bool"): "bitwise_and bitwise_or bitwise_xor",
}
_TENSORS_ONLY = [
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logaddexp2",
    "gcd",
    "lcm",
    "nextafter",
    "hypot",
    "atan2",
    "logical_and",
    "logical_or",
    "logical_xor",
]
_NO_METHOD = ["maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "special.xlog1py"]
_DIFFERENTIABLE = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "atan2",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logaddexp2",
    "xlogy",
    "pow",
    "hypot",
    "copysign",
    "remainder",
    "fmod",
    "float_power",
]


def _enter_binary(name: str, dtypes: Sequence[str]) -> None:
    @operator(name)
    def build(g: Generator) -> str:
        a = g.tensor(dtypes)
        other = g.tensor(dtypes, shape=broadcast_shape(g, a)) if name in _TENSORS_ONLY else second(g, a, dtypes)
        rest = ""
        if name in ("add", "sub") and g.chance(0.3):
            rest = f"alpha={number(g)}"
        if name == "div" and g.chance(0.5):
            rest = f"rounding_mode={g.pick(('trunc', 'floor'))!r}"
        operands = [a, other] if other.startswith("v") else [a]
        rest = ", ".join(filter(None, [rest if operands[1:] else f"{other}, {rest}".strip(", ")]))
        grad = name in _DIFFERENTIABLE and "rounding" not in rest
        return call(
            g, f"torch.{name}", operands, rest, method="" if name in _NO_METHOD else f"{name}_", out=True, grad=grad
        )


for _dtypes, _names in _BINARY.items():
    for _name in _names.split():
        _enter_binary(_name, _dtypes)


@operator("number first")
def _number_first(g: Generator) -> str:
    symbol = g.pick(("+", "-", "*", "/", "//", "%", "**", "<", "==", ">="))
    return f"{number(g)} {symbol} {g.tensor(NUMBER)}"


@operator("rsub")
def _rsub(g: Generator) -> str:
    return f"torch.rsub({g.tensor(NUMBER)}, {number(g)})"


@operator("heaviside")
def _heaviside(g: Generator) -> str:
    a = g.tensor(NUMBER)
    dtype = str(g.value(a).dtype).removeprefix("torch.")
    return call(
        g,
        "torch.heaviside",
        [a, g.tensor((dtype,), shape=broadcast_shape(g, a))],
        method="heaviside_",
        out=True,
        grad=False,
    )


@operator("ldexp")
def _ldexp(g: Generator) -> str:
    a = g.tensor(NUMBER, tame=True)
    return call(g, "torch.ldexp", [a, g.tensor(INT, shape=broadcast_shape(g, a), limits=(-4, 8))], out=True, grad=False)


@operator("special.zeta")
def _zeta(g: Generator) -> str:
    a = g.tensor(("float32", "float64"), limits=(1.5, 9))
    return f"torch.special.zeta({a}, {g.tensor(('float32', 'float64'), shape=broadcast_shape(g, a), limits=(0.5, 9))})"


@operator("isclose")
def _isclose(g: Generator) -> str:
    a = g.tensor(NUMBER)
    dtype = str(g.value(a).dtype).removeprefix("torch.")
    return f"torch.isclose({a}, {g.tensor((dtype,), shape=broadcast_shape(g, a))}, atol=0.5, equal_nan={g.chance(0.5)})"


@operator("where")
def _where(g: Generator) -> str:
    condition = g.tensor(("bool",))
    operands = [second(g, condition), second(g, condition)]
    return f"torch.where({condition}, {', '.join(operands)})"


@operator("lerp")
def _lerp(g: Generator) -> str:
    a = g.tensor(FLOAT)
    dtype = (str(g.value(a).dtype).removeprefix("torch."),)
    b = g.tensor(dtype, shape=broadcast_shape(g, a))
    if g.chance(0.5):
        return call(g, "torch.lerp", [a, b], "0.3", method="lerp_", out=True)
    return call(g, "torch.lerp", [a, b, g.tensor(dtype, shape=broadcast_shape(g, a))], method="lerp_", out=True)


for _name in ("addcmul", "addcdiv"):

    @operator(_name)
    def _addc(g: Generator, name: str = _name) -> str:
        a = g.tensor(NUMBER if name == "addcmul" else FLOAT)
        same = NUMBER if g.chance(0.3) else (str(g.value(a).dtype).removeprefix("torch."),)
        operands = [a, *(g.tensor(same, shape=broadcast_shape(g, a)) for _ in range(2))]
        return call(
            g, f"torch.{name}", operands, f"value={number(g)}" if g.chance(0.5) else "", method=f"{name}_", out=True
        )


for _name in ("clamp", "clip"):

    @operator(_name)
    def _clamp(g: Generator, name: str = _name) -> str:
        a = g.tensor(NUMBER)
        form = g.pick(("both", "min", "max", "tensors"))
        if form == "tensors":
            bounds = [g.tensor(NUMBER, shape=broadcast_shape(g, a)) for _ in range(2)]
            return call(g, f"torch.{name}", [a, *bounds], method=f"{name}_", out=True)
        rest = {"both": f"{number(g)}, {number(g)}", "min": f"min={number(g)}", "max": f"max={number(g)}"}[form]
        return call(g, f"torch.{name}", [a], rest, method=f"{name}_", out=True)


for _name in ("clamp_min", "clamp_max"):

    @operator(_name)
    def _clamp_one(g: Generator, name: str = _name) -> str:
        return call(g, f"torch.{name}", [g.tensor(NUMBER)], number(g), method=f"{name}_", out=True)


# Reductions.
def _dims(g: Generator, name: str, *, several: bool) -> str:
    """Arguments ``dim`` and ``keepdim``, or none for all dimensions."""
    rank = g.value(name).dim()
    form = g.pick(("all", "one", "one", "some") if several else ("one",))
    if form == "all" or (rank == 0 and form == "some"):
        return ""
    keep = f", keepdim={g.chance(0.5)}"
    if form == "one":
        return f"{dim_of(g, name, 0)}{keep}"
    return f"{tuple(sorted(g.kind.sample(range(rank), g.kind.randint(1, rank))))}{keep}"


_REDUCTIONS = {
    "sum": ANY, "mean": FLOAT, "nansum": ANY, "nanmean": FLOAT, "amax": ANY, "amin": ANY, "logsumexp": FLOAT,
    "std": FLOAT, "var": FLOAT, "all": ANY, "any": ANY, "linalg.vector_norm": FLOAT,
}  # fmt: skip
for _name, _dtypes in _REDUCTIONS.items():

    @operator(_name)
    def _reduce(g: Generator, name: str = _name, dtypes: Sequence[str] = _dtypes) -> str:
        x = g.tensor(dtypes)
        where = _dims(g, x, several=True)
        if name == "linalg.vector_norm":
            where = f"{g.pick(('2', '1', 'inf', '-inf', '0', '3.5'))}, {where}".strip(", ")
        if name == "logsumexp" and not where:
            where = "0" if g.value(x).dim() < 2 else "(0, 1)"
        if name in ("sum", "mean", "nansum") and g.chance(0.15):
            where = f"{where}, dtype=torch.{g.pick(('float32', 'float64'))}".strip(", ")
        return call(g, f"torch.{name}", [x], where, out=bool(where), grad=name not in ("all", "any"))


for _name in ("std_mean", "var_mean"):

    @operator(_name)
    def _two(g: Generator, name: str = _name) -> str:
        x = g.tensor(FLOAT)
        return call(g, f"torch.{name}", [x], _dims(g, x, several=True))


for _name in ("prod", "argmax", "argmin", "median", "nanmedian", "max", "min", "count_nonzero", "cumsum", "cumprod",
              "cummax",
              "cummin", "logcumsumexp", "mode", "aminmax", "argsort", "msort", "softmax", "log_softmax"):  # fmt: skip

    @operator(_name)
    def _along(g: Generator, name: str = _name) -> str:
        floats = ("logcumsumexp", "softmax", "log_softmax")
        layout = g.pick(("dense", "permuted", "gaps", "offset")) if name in allowed.NOT_EXPANDED else None
        tame = name in ("prod", "cumprod", *allowed.NOT_NAN)
        x = g.tensor(FLOAT if name in floats else NUMBER, tame=tame, layout=layout)
        if name == "msort":
            return call(g, "torch.msort", [x], out=True)
        if name in ("prod", "argmax", "argmin", "median", "nanmedian", "max", "min", "count_nonzero") and g.chance(0.3):
            return call(g, f"torch.{name}", [x], grad=name not in ("argmax", "argmin", "count_nonzero"))
        rest = str(dim_of(g, x, 0))
        if name == "aminmax":
            rest = f"dim={rest}"
        if name in ("argmax", "argmin", "median", "nanmedian", "max", "min", "mode", "prod", "aminmax"):
            rest += f", keepdim={g.chance(0.5)}"
        if name == "argsort":
            rest = f"dim={rest}, stable=True, descending={g.chance(0.5)}"
        if name in allowed.ANY_PLACE:
            return f"torch.{name}({x}, {rest})[0]"
        indexed = name in ("argmax", "argmin", "count_nonzero", "argsort")
        method = f"{name}_" if name in ("cumsum", "cumprod") else ""
        return call(
            g, f"torch.{name}", [x], rest, method=method, out=not indexed and name != "aminmax", grad=not indexed
        )


@operator("norm")
def _norm(g: Generator) -> str:
    x = g.tensor(FLOAT)
    return call(g, "torch.norm", [x], f"{g.pick(('2', '1', 'inf', '0'))}, {dim_of(g, x, 0)}")


@operator("sort")
def _sort(g: Generator) -> str:
    x = g.tensor(ANY)
    return call(g, "torch.sort", [x], f"dim={dim_of(g, x, 0)}, stable=True, descending={g.chance(0.5)}")


for _name in ("topk", "kthvalue"):

    @operator(_name)
    def _order(g: Generator, name: str = _name) -> str:
        x = g.tensor(NUMBER)
        dim = dim_of(g, x)
        k = min(g.kind.randint(1, 6), max(g.value(x).shape[dim], 1))
        # Which of equal values is taken is not said: values only.
        return f"torch.{name}({x}, {k}, {dim})[0]"


for _name in ("quantile", "nanquantile"):

    @operator(_name)
    def _quantile(g: Generator, name: str = _name) -> str:
        x = g.tensor(("float32", "float64"))
        value = g.value(x)
        is_apart = value.unique().numel() == value.numel() and value.isnan().sum() < 2
        apart = name not in allowed.ANY_GRADIENT or is_apart
        return call(g, f"torch.{name}", [x], f"{g.pick(('0.3', '0.75'))}, {dim_of(g, x, 0)}", grad=apart)


@operator("diff")
def _diff(g: Generator) -> str:
    x = g.tensor(ANY)
    return call(g, "torch.diff", [x], f"n={g.pick((1, 1, 2))}, dim={dim_of(g, x)}")


for _name in ("trapezoid", "cumulative_trapezoid"):

    @operator(_name)
    def _trapezoid(g: Generator, name: str = _name) -> str:
        x = g.tensor(NUMBER)
        return call(g, f"torch.{name}", [x], f"dx=0.5, dim={dim_of(g, x)}")


@operator("histc")
def _histc(g: Generator) -> str:
    return f"torch.histc({g.tensor(('float32', 'float64'), tame=True)}, bins={g.pick((4, 10))}, min=-2, max=3)"


@operator("bincount")
def _bincount(g: Generator) -> str:
    return f"torch.bincount({g.tensor(INT, (1,), limits=(0, 9))}, minlength={g.pick((0, 12))})"


@operator("unique")
def _unique(g: Generator) -> str:
    x = g.tensor((*INT, "bool", "float32"), tame=True)
    return f"torch.unique({x}, return_inverse={g.chance(0.5)}, return_counts={g.chance(0.5)})"


@operator("unique_consecutive")
def _unique_consecutive(g: Generator) -> str:
    return f"torch.unique_consecutive({g.tensor(INT, tame=True)}, return_counts={g.chance(0.5)})"


# Views and copies, by the expression after the operand; {d} and {e} are dimensions, {n} is the size of {d}.
_VIEWS = {
    "transpose": ".transpose({d}, {e})", "swapaxes": ".swapaxes({d}, {e})", "select": ".select({d}, {i})",
    "narrow": ".narrow({d}, {i}, {rest})", "unsqueeze": ".unsqueeze({u})", "squeeze": ".squeeze()",
    "squeeze dim": ".squeeze({d})", "flatten": ".flatten()", "ravel": ".ravel()", "reshape": ".reshape(-1)",
    "view": ".view(-1)", "movedim": ".movedim({d}, {e})", "unfold": ".unfold({d}, {k}, {step})", "T": ".T", "mT": ".mT",
    "H": ".mH", "split": ".split({k}, {d})", "chunk": ".chunk(2, {d})", "tensor_split": ".tensor_split(3, {d})",
    "unbind": ".unbind({d})", "detach": ".detach()", "alias": ".view_as({x})", "slice": "[{i}:]",
    "slice step": "[..., ::2]",
    "slice stop": "[:-1]", "index": "[{i}]", "none": "[None, ..., None]", "last": "[..., -1]",
    "diagonal": ".diagonal({o}, {d}, {e})", "contiguous": ".contiguous()", "clone": ".clone()", "flip": ".flip({d})",
    "flip all": ".flip({all})", "fliplr": ".fliplr()", "flipud": ".flipud()", "roll": ".roll({o}, {d})",
    "roll flat": ".roll({o})", "rot90": ".rot90({o})", "repeat": ".repeat(2, {ones})", "tile": ".tile(2)",
    "repeat_interleave": ".repeat_interleave({k}, {d})", "tril": ".tril({o})", "triu": ".triu({o})",
    "diag": ".diag({o})",
    "diag_embed": ".diag_embed({o})", "diagflat": ".diagflat({o})", "expand": ".expand(2, {minus})",
    "broadcast_to": ".broadcast_to((3, {shape}))", "narrow_copy": ".narrow_copy({d}, {i}, {rest})",
    "channels_last": ".contiguous(memory_format=torch.channels_last)", "permute": ".permute({permutation})",
    "unflatten": ".unflatten({d}, (-1, 1))", "view shape": ".view({shape}, 1)", "data": ".data", "real": ".real",
    "unsafe_split": ".unsafe_split({k}, {d})", "swapdims": ".swapdims({d}, {e})", "hsplit": ".hsplit(1)",
    "as_strided": ".as_strided(({n}, 2), ({s}, 0))", "sum_to_size": ".sum_to_size({shape})", "trace": ".trace()",
    "new_zeros": ".new_zeros({shape}, 2)", "new_ones": ".new_ones({shape}, 2)",
    "new_full": ".new_full(({shape}, 2), 3)",
    "zeros_like": "torch.zeros_like({x})", "ones_like": "torch.ones_like({x})", "full_like": "torch.full_like({x}, 1)",
    "atleast_1d": "torch.atleast_1d({x})", "atleast_2d": "torch.atleast_2d({x})", "atleast_3d": "torch.atleast_3d({x})",
    "zero_": ".zero_()", "fill_": ".fill_({i})", "fill_diagonal_": ".fill_diagonal_({i})", "t": ".t()",
    "triu_": ".triu_({o})", "tril_": ".tril_({o})", "transpose_": ".transpose_({d}, {e})", "squeeze_": ".squeeze_()",
    "unsqueeze_": ".unsqueeze_({u})", "item": ".sum().item()", "tolist": ".tolist()", "nonzero": ".nonzero()",
    "argwhere": ".argwhere()", "split_copy": "torch.split_copy({x}, {k}, {d})", "t_copy": "torch.t_copy({x})",
    "permute_copy": "torch.permute_copy({x}, ({permutation}))", "view_copy": "torch.view_copy({x}, (-1,))",
    "expand_copy": "torch.expand_copy({x}, (2, {minus}))", "select_copy": "torch.select_copy({x}, {d}, {i})",
    "slice_copy": "torch.slice_copy({x}, {d}, {i})", "diagonal_copy": "torch.diagonal_copy({x}, {o}, {d}, {e})",
    "unfold_copy": "torch.unfold_copy({x}, {d}, {k}, {step})", "squeeze_copy": "torch.squeeze_copy({x})",
    "unsqueeze_copy": "torch.unsqueeze_copy({x}, {u})", "transpose_copy": "torch.transpose_copy({x}, {d}, {e})",
    "unbind_copy": "torch.unbind_copy({x}, {d})", "as_strided_copy": "torch.as_strided_copy({x}, ({n}, 2), ({s}, 0))",
    "vander": "torch.vander({x}, {k})", "cov": "torch.cov({x})", "corrcoef": "torch.corrcoef({x})",
    "mT clone": ".mT.clone()",
}  # fmt: skip
_FLOAT_VIEWS = ("cov", "corrcoef")
_TAME_VIEWS = ("vander", "cov", "corrcoef", "item")


def _enter_view(name: str, template: str) -> None:
    @operator(f".{name}")
    def build(g: Generator) -> str:
        dtypes = ("float32", "float64") if name in _FLOAT_VIEWS else ANY
        x = g.tensor(dtypes, tame=name in _TAME_VIEWS)
        shape = list(g.value(x).shape)
        rank = len(shape)
        if rank == 0 and any(key in template for key in ("{d}", "{e}", "[", "{all}")):
            raise Refused
        d = g.kind.randrange(max(rank, 1))
        size = shape[d] if rank else 1
        i = g.free.randrange(max((size if "{d}" in template else (shape or [1])[0]), 1))
        permutation = list(range(rank))
        g.kind.shuffle(permutation)
        text = template.format(
            x=x, d=d - (rank if g.chance(0.4) else 0), e=g.kind.randrange(max(rank, 1)), i=i,
            rest=g.free.randint(0, max(size - i, 0)),
            u=g.kind.randint(-rank - 1, rank), n=size, o=g.pick((0, 1, -1, 2)),
            k=min(g.kind.randint(1, 4), max(size, 1)), step=g.pick((1, 2)), all=tuple(range(rank)),
            ones=", ".join(["1"] * rank), minus=", ".join(["-1"] * rank),
            shape=", ".join(map(str, shape)) or "1", permutation=", ".join(map(str, permutation)),
            s=g.value(x).stride(d) if rank else 1,
        )  # fmt: skip
        line = text if "{x}" in template and not template.startswith(".") else f"{x}{text}"
        if g.chance(0.15) and _differentiable(g, x) and not template.endswith("_()") and "_(" not in template:
            inner = line.replace(x, "a0")
            return f"gradient(lambda a0: {inner}, {x})" if name not in ("item", "tolist", "data", "detach") else line
        return line


for _name, _template in _VIEWS.items():
    _enter_view(_name, _template)


@operator(".to")
def _to(g: Generator) -> str:
    return f"{g.tensor(ANY, tame=True)}.to(torch.{g.pick(ANY)})"


@operator(".type")
def _type(g: Generator) -> str:
    x = g.tensor(ANY, tame=True)
    return f"{x}.{g.pick(('float', 'half', 'double', 'int', 'long', 'bool', 'bfloat16', 'short'))}()"


@operator(".view dtype")
def _view_dtype(g: Generator) -> str:
    wide, narrow = g.pick(
        (("float32", "int32"), ("int64", "float64"), ("float16", "int16"), ("int8", "uint8"), ("int32", "int16"))
    )
    return f"{g.tensor((wide,), tame=True)}.view(torch.{narrow})"


@operator(".copy_")
def _copy(g: Generator) -> str:
    target = g.tensor(ANY)
    return f"{target}.copy_({g.tensor(ANY, shape=broadcast_shape(g, target), tame=True)})"


@operator(".expand_as")
def _expand_as(g: Generator) -> str:
    x = g.tensor(ANY)
    return f"{g.tensor(ANY, shape=broadcast_shape(g, x))}.expand_as({x})"


for _name in ("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag", "broadcast_tensors",
              "meshgrid",
              "cartesian_prod"):  # fmt: skip

    @operator(_name)
    def _join(g: Generator, name: str = _name) -> str:
        a = g.tensor(ANY, (1,) if name in ("meshgrid", "cartesian_prod") else (1, 2, 3, 0))
        dtypes = (
            ANY if name in ("cat", "block_diag", "stack", "hstack") else (str(g.value(a).dtype).removeprefix("torch."),)
        )
        others = [g.tensor(dtypes, shape=list(g.value(a).shape)) for _ in range(g.pick((1, 1, 2)))]
        parts = [a, *others]
        if name in ("cat", "stack"):
            return call(g, f"(lambda *parts, **more: torch.{name}(parts, {dim_of(g, a, 0)}, **more))", parts, out=True)
        if name == "meshgrid":
            return f"torch.meshgrid({', '.join(parts)}, indexing={g.pick(('ij', 'xy'))!r})"
        return (
            f"torch.{name}({', '.join(parts)})"
            if name in ("block_diag", "broadcast_tensors", "cartesian_prod")
            else (f"torch.{name}(({', '.join(parts)}))")
        )


for _name in ("_foreach_add", "_foreach_mul", "_foreach_sub", "_foreach_div", "_foreach_maximum", "_foreach_sqrt",
              "_foreach_exp",
              "_foreach_neg", "_foreach_lerp", "_foreach_addcmul", "_foreach_norm", "_foreach_pow"):  # fmt: skip

    @operator(_name)
    def _foreach(g: Generator, name: str = _name) -> str:
        a = g.tensor(FLOAT)
        dtype = (str(g.value(a).dtype).removeprefix("torch."),)
        lists = []
        for _ in range(
            {"_foreach_addcmul": 3, "_foreach_sqrt": 1, "_foreach_exp": 1, "_foreach_neg": 1, "_foreach_norm": 1}.get(
                name, 2
            )
        ):
            lists.append(
                f"[{a if not lists else g.tensor(dtype, shape=list(g.value(a).shape))}, {g.tensor(dtype, shape=[3])}]"
            )
        if name == "_foreach_pow":
            lists[1] = "2"
        if name == "_foreach_lerp":
            lists.append("0.4")
        place = "" if name == "_foreach_norm" or g.chance(0.5) else "_"
        return f"torch.{name}{place}({', '.join(lists)})"


from tools.fuzz import special  # noqa: E402, F401 - enters its operators
