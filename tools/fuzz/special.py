# SPDX-License-Identifier: Apache-2.0
"""Operators whose operands must fit each other: indexing, products, neural networks, losses."""

from __future__ import annotations

from collections.abc import Sequence

from tools.fuzz.generate import ANY, FLOAT, INT, NUMBER, Generator, Refused
from tools.fuzz.operators import broadcast_shape, call, dim_of, number, operator, part_of

_INDEX = ("int64", "int64", "int32")
_REAL = ("float32", "float32", "float64", "float16", "bfloat16", "complex64")


def dtype_of(g: Generator, name: str) -> tuple[str]:
    """The dtype of an operand, as the only choice for another."""
    return (str(g.value(name).dtype).removeprefix("torch."),)


def indices(
    g: Generator, size: int, shape: Sequence[int], dtypes: Sequence[str] = ("int64",), *, negative: bool = False
) -> str:
    """Indices into a dimension of ``size``; one in forty is out of range."""
    wrong = g.free.random() < 0.025
    if size == 0 and not wrong:
        raise Refused
    low = -size if negative else 0
    return g.tensor(dtypes, shape=shape, limits=(low, size - 1 + wrong))


def distinct(g: Generator, size: int, count: int) -> str:
    """``count`` different indices below ``size``."""
    if count > size:
        raise Refused
    return g.line(f"leaf(torch.int64, ({count},), (1,), 0, {g.free.sample(range(size), count) or [0]})")


@operator("index_select")
def _index_select(g: Generator) -> str:
    x = g.tensor(ANY)
    dim = dim_of(g, x)
    index = indices(g, g.value(x).shape[dim], [g.size()], _INDEX)
    return call(g, f"(lambda x, **more: torch.index_select(x, {dim}, {index}, **more))",
                [x], out=True)  # fmt: skip


@operator("gather")
def _gather(g: Generator) -> str:
    x = g.tensor(ANY)
    dim = dim_of(g, x)
    shape = [part_of(g, n) for n in g.value(x).shape]
    index = indices(g, g.value(x).shape[dim], shape)
    return call(g, f"(lambda x, **more: torch.gather(x, {dim}, {index}, **more))", [x], out=True)


@operator("take")
def _take(g: Generator) -> str:
    x = g.tensor(ANY)
    index = indices(g, g.value(x).numel(), [g.size()], negative=True)
    return call(g, f"(lambda x, **more: torch.take(x, {index}, **more))", [x], out=True)


@operator("take_along_dim")
def _take_along(g: Generator) -> str:
    x = g.tensor(ANY)
    dim = dim_of(g, x)
    return f"torch.take_along_dim({x}, {indices(g, g.value(x).shape[dim], list(g.value(x).shape))}, {dim})"


@operator("index")
def _index(g: Generator) -> str:
    x = g.tensor(ANY, (1, 2, 3))
    shape = g.value(x).shape
    first = indices(g, shape[0], [g.size()], negative=True)
    form = g.pick(("one", "last", "two", "slice", "matrix"))
    if form == "matrix":
        return f"{x}[{indices(g, shape[0], [2, 3], negative=True)}]"
    if len(shape) < 2 or form == "one":
        return call(g, f"(lambda x: x[{first}])", [x])
    if form == "two":
        return call(g, f"(lambda x: x[{first}, {indices(g, shape[1], list(g.value(first).shape))}])", [x])
    if form == "slice":
        return call(g, f"(lambda x: x[{first}, ::2])", [x])
    return call(g, f"(lambda x: x[..., {indices(g, shape[-1], [g.size()])}])", [x])


@operator("index mask")
def _index_mask(g: Generator) -> str:
    x = g.tensor(ANY, (1, 2, 3))
    rank = g.pick((1, g.value(x).dim()))
    return f"{x}[{g.tensor(('bool',), shape=list(g.value(x).shape)[:rank])}]"


@operator("masked_select")
def _masked_select(g: Generator) -> str:
    x = g.tensor(ANY)
    return f"torch.masked_select({x}, {g.tensor(('bool',), shape=broadcast_shape(g, x))})"


@operator("masked_fill")
def _masked_fill(g: Generator) -> str:
    x = g.tensor(ANY)
    mask = g.tensor(("bool",), shape=broadcast_shape(g, x))
    return call(g, "torch.masked_fill", [x, mask], number(g), method="masked_fill_")


@operator("masked_scatter")
def _masked_scatter(g: Generator) -> str:
    x = g.tensor(ANY)
    mask = g.tensor(("bool",), shape=broadcast_shape(g, x))
    source = g.tensor(
        dtype_of(g, x), shape=[g.value(x).numel() + g.free.choice((0, 0, 0, 3, -1))] if g.value(x).numel() else [0]
    )
    return call(g, "torch.masked_scatter", [x, mask, source], method="masked_scatter_")


@operator("index_put")
def _index_put(g: Generator) -> str:
    x = g.tensor(ANY, (1, 2, 3))
    shape = list(g.value(x).shape)
    if g.chance(0.3):
        mask = g.tensor(("bool",), shape=shape[: g.pick((1, len(shape)))])
        return f"assign({x}, {mask}, {g.pick(('0', '1', '1'))})"
    index = distinct(g, shape[0], min(shape[0], 3))
    source = g.tensor(dtype_of(g, x), shape=[min(shape[0], 3), *shape[1:]])
    form = g.pick(("assign", "accumulate", "functional"))
    if form == "assign":
        return f"assign({x}, {index}, {source})"
    if form == "accumulate":
        return f"{x}.index_put_(({indices(g, shape[0], [min(shape[0], 3)])},), {source}, accumulate=True)"
    return f"torch.index_put({x}, ({index},), {source})"


@operator("assign slice")
def _assign_slice(g: Generator) -> str:
    x = g.tensor(ANY, (1, 2, 3))
    index = g.pick(("slice(1, None)", "slice(None, None, 2)", "(..., 0)", "0", "slice(0, 2)"))
    return f"assign({x}, {index}, {number(g)})"


@operator("assign tensor")
def _assign_tensor(g: Generator) -> str:
    x = g.tensor(ANY, (2, 3))
    return f"assign({x}, 0, {g.tensor(ANY, shape=list(g.value(x).shape)[1:], tame=True)})"


for _name in ("scatter", "scatter_add"):

    @operator(_name)
    def _scatter(g: Generator, name: str = _name) -> str:
        x = g.tensor(ANY, (1, 2, 3))
        dim = dim_of(g, x)
        shape = [part_of(g, n) for n in g.value(x).shape]
        if name == "scatter":
            shape[dim] = 1  # with equal indices the order is not said
        index = indices(g, g.value(x).shape[dim], shape)
        source = number(g) if name == "scatter" and g.chance(0.3) else g.tensor(dtype_of(g, x), shape=shape)
        if g.chance(0.3):
            return f"{x}.{name}_({dim}, {index}, {source})"
        return f"torch.{name}({x}, {dim}, {index}, {source})"


@operator("scatter_reduce")
def _scatter_reduce(g: Generator) -> str:
    x = g.tensor(NUMBER, (1, 2, 3))
    dim = dim_of(g, x)
    shape = [part_of(g, n) for n in g.value(x).shape]
    how = g.pick(("sum", "prod", "mean", "amax", "amin"))
    index = indices(g, g.value(x).shape[dim], shape)
    source = g.tensor(dtype_of(g, x), shape=shape, tame=True)
    return f"torch.scatter_reduce({x}, {dim}, {index}, {source}, {how!r}, include_self={g.chance(0.5)})"


for _name in ("index_add", "index_copy", "index_reduce"):

    @operator(_name)
    def _index_write(g: Generator, name: str = _name) -> str:
        x = g.tensor(ANY if name != "index_reduce" else NUMBER, (1, 2, 3))
        dim = dim_of(g, x)
        shape = list(g.value(x).shape)
        count = min(3, shape[dim])
        index = distinct(g, shape[dim], count) if name == "index_copy" else indices(g, shape[dim], [count], _INDEX)
        shape[dim] = count
        source = g.tensor(dtype_of(g, x), shape=shape, tame=True)
        rest = {
            "index_add": f"alpha={g.pick((1, 2))}",
            "index_copy": "",
            "index_reduce": repr(g.pick(("prod", "amax", "mean"))),
        }[name]
        rest = f"{rest}, " if rest else ""
        return call(g, f"(lambda x, s, **more: torch.{name}(x, {dim}, {index}, s, {rest}**more))", [x, source],
                    out=True)  # fmt: skip


@operator("index_fill")
def _index_fill(g: Generator) -> str:
    x = g.tensor(ANY)
    dim = dim_of(g, x)
    index = indices(g, g.value(x).shape[dim], [g.size()])
    return f"{x}.index_fill{g.pick(('', '_'))}({dim}, {index}, {number(g)})"


@operator("put_")
def _put(g: Generator) -> str:
    x = g.tensor(ANY)
    count = min(g.value(x).numel(), 4)
    index = distinct(g, g.value(x).numel(), count)
    return f"{x}.put_({index}, {g.tensor(dtype_of(g, x), shape=[count])}, accumulate={g.chance(0.5)})"


@operator("searchsorted")
def _searchsorted(g: Generator) -> str:
    edges = g.line(f"{g.tensor(NUMBER, (1,), tame=True)}.sort().values")
    right = f"right={g.chance(0.5)}, out_int32={g.chance(0.3)}"
    values = g.tensor(dtype_of(g, edges), tame=True)
    if g.chance(0.5):
        return f"torch.bucketize({values}, {edges}, {right})"
    return f"torch.searchsorted({edges}, {values}, {right})"


@operator("isin")
def _isin(g: Generator) -> str:
    x = g.tensor(NUMBER, tame=True)
    return f"torch.isin({x}, {g.tensor(dtype_of(g, x), (1,), tame=True)}, invert={g.chance(0.4)})"


for _name in ("select_scatter", "slice_scatter", "diagonal_scatter"):

    @operator(_name)
    def _view_scatter(g: Generator, name: str = _name) -> str:
        x = g.tensor(ANY, (2, 3))
        shape = list(g.value(x).shape)
        if name == "diagonal_scatter":
            source = g.tensor(dtype_of(g, x), shape=list(g.value(x).diagonal().shape))
            return f"torch.diagonal_scatter({x}, {source})"
        dim = g.kind.randrange(len(shape))
        if shape[dim] == 0:
            raise Refused
        if name == "select_scatter":
            source = g.tensor(dtype_of(g, x), shape=shape[:dim] + shape[dim + 1 :])
            return f"torch.select_scatter({x}, {source}, {dim}, {min(g.pick((0, 1, 3)), shape[dim] - 1)})"
        shape[dim] = (shape[dim] + 1) // 2
        return f"torch.slice_scatter({x}, {g.tensor(dtype_of(g, x), shape=shape)}, {dim}, step=2)"


@operator("F.embedding")
def _embedding(g: Generator) -> str:
    table = g.tensor(FLOAT, (2,))
    index = indices(g, g.value(table).shape[0], [g.size() for _ in range(g.pick((1, 2)))], _INDEX)
    return call(g, f"(lambda t: F.embedding({index}, t))", [table])


@operator("F.embedding_bag")
def _embedding_bag(g: Generator) -> str:
    table = g.tensor(("float32", "float64"), (2,))
    index = indices(g, g.value(table).shape[0], [g.size(), g.size()])
    return call(g, f"(lambda t: F.embedding_bag({index}, t, mode={g.pick(('sum', 'mean', 'max'))!r}))", [table])


@operator("F.one_hot")
def _one_hot(g: Generator) -> str:
    return f"F.one_hot({g.tensor(('int64',), (0, 1, 2), limits=(0, 6))}, {g.pick((-1, 7, 9))})"


# Products. Their sizes come from the program's, so that shapes meet.
def _matrix(g: Generator, dtypes: Sequence[str], *shape: int) -> str:
    return g.tensor(dtypes, shape=shape, tame=True)


_OF_PRODUCTS = (*_REAL, "float32", "complex64", "int64", "int32", "uint8")


def _products(g: Generator) -> tuple[Sequence[str], int, int, int, int]:
    dtype = (g.pick(_OF_PRODUCTS),)
    return dtype, g.size(), g.size(), g.size(), g.pick((1, 2, 3))


@operator("mm")
def _mm(g: Generator) -> str:
    d, n, k, m, _ = _products(g)
    return call(g, "torch.mm", [_matrix(g, d, n, k), _matrix(g, d, k, m)], out=True)


@operator("bmm")
def _bmm(g: Generator) -> str:
    d, n, k, m, b = _products(g)
    return call(g, "torch.bmm", [_matrix(g, d, b, n, k), _matrix(g, d, b, k, m)], out=True)


@operator("matmul")
def _matmul(g: Generator) -> str:
    d, n, k, m, b = _products(g)
    left, right = g.pick(
        (([n, k], [k]), ([k], [k, m]), ([b, n, k], [k, m]), ([n, k], [b, k, m]), ([k], [k]), ([2, 1, n, k], [b, k, m]))
    )
    return call(g, "torch.matmul", [_matrix(g, d, *left), _matrix(g, d, *right)], out=True)


@operator("mv")
def _mv(g: Generator) -> str:
    d, n, k, _, _ = _products(g)
    return call(g, "torch.mv", [_matrix(g, d, n, k), _matrix(g, d, k)], out=True)


for _name in ("dot", "vdot", "inner", "outer", "kron"):

    @operator(_name)
    def _vectors(g: Generator, name: str = _name) -> str:
        d, n, _, _, _ = _products(g)
        return call(g, f"torch.{name}", [_matrix(g, d, n), _matrix(g, d, n)], out=True)


for _name in ("addmm", "addmv", "addr", "baddbmm", "addbmm"):

    @operator(_name)
    def _added(g: Generator, name: str = _name) -> str:
        d, n, k, m, b = _products(g)
        shapes = {
            "addmm": ([n, m], [n, k], [k, m]), "addmv": ([n], [n, k], [k]), "addr": ([n, m], [n], [m]),
            "baddbmm": ([b, n, m], [b, n, k], [b, k, m]), "addbmm": ([n, m], [b, n, k], [b, k, m]),
        }[name]  # fmt: skip
        first = shapes[0] if g.chance(0.6) else shapes[0][-1:]
        operands = [_matrix(g, d, *first), *(_matrix(g, d, *shape) for shape in shapes[1:])]
        rest = f"beta={g.pick((0, 1, 2))}, alpha={g.pick((1, 3))}" if g.chance(0.5) else ""
        return call(g, f"torch.{name}", operands, rest, method=f"{name}_" if first == shapes[0] else "", out=True)


@operator("einsum")
def _einsum(g: Generator) -> str:
    d, n, k, m, b = _products(g)
    text, left, right = g.pick((("ij,jk->ik", [n, k], [k, m]),
                                ("bij,bjk->bik", [b, n, k], [b, k, m]), ("ij,ij->i", [n, k], [n, k]),
                                ("i,j->ij", [n], [m]), ("bij,kj->bki", [b, n, k], [m, k])))  # fmt: skip
    return call(g, f"(lambda x, y: torch.einsum({text!r}, x, y))", [_matrix(g, d, *left), _matrix(g, d, *right)])


@operator("tensordot")
def _tensordot(g: Generator) -> str:
    d, n, k, m, b = _products(g)
    return call(g, "torch.tensordot", [_matrix(g, d, n, b, k), _matrix(g, d, b, k, m)], "2")


@operator("F.linear")
def _linear(g: Generator) -> str:
    d, n, k, m, b = _products(g)
    x = _matrix(g, d, *g.pick(([n, k], [b, n, k], [k])))
    bias = [_matrix(g, d, m)] if g.chance(0.6) else []
    return call(g, "F.linear", [x, _matrix(g, d, m, k), *bias])


@operator("F.bilinear")
def _bilinear(g: Generator) -> str:
    _, n, k, m, _ = _products(g)
    d = (g.pick(("float32", "float64")),)
    return call(g, "F.bilinear", [_matrix(g, d, n, k), _matrix(g, d, n, m), _matrix(g, d, 4, k, m)])


@operator("cdist")
def _cdist(g: Generator) -> str:
    _, n, k, m, b = _products(g)
    d = (g.pick(("float32", "float64")),)
    return call(
        g, "torch.cdist", [_matrix(g, d, b, n, k), _matrix(g, d, b, m, k)], f"p={g.pick((2.0, 1.0, 3.0))}", grad=False
    )


@operator("cross")
def _cross(g: Generator) -> str:
    d, n, _, _, _ = _products(g)
    return call(g, "torch.linalg.cross", [_matrix(g, d, n, 3), _matrix(g, d, n, 3)], out=True)


@operator("linalg.vecdot")
def _vecdot(g: Generator) -> str:
    d, n, k, _, _ = _products(g)
    return call(g, "torch.linalg.vecdot", [_matrix(g, d, n, k), _matrix(g, d, n, k)])


for _name in ("det", "inv", "cholesky", "slogdet", "matrix_power", "solve", "inv_ex", "pinv"):

    @operator(f"linalg.{_name}")
    def _linalg(g: Generator, name: str = _name) -> str:
        d, n = (g.pick(("float32", "float64", "complex64")),), g.kind.randint(1, 6)
        x = _matrix(g, d, n, n)
        well = g.line(f"{x} @ {x}.mT + 9 * torch.eye({n}, dtype={x}.dtype, device=DEVICE)")
        more = {"matrix_power": [g.pick(("2", "3", "0", "-1"))], "solve": [_matrix(g, d, n, 2)]}.get(name, [])
        return f"torch.linalg.{name}({', '.join([well, *more])})"


# Neural networks.
_PLANE = ("float32", "float32", "float32", "float64", "float16", "bfloat16", "complex64")


def _images(g: Generator, rank: int, channels: int, low: int = 3) -> str:
    shape = [g.pick((1, 2, 2)), channels, *(g.free.randint(low, 9) for _ in range(rank))]
    return g.tensor(_PLANE, shape=shape, tame=True, layout=g.pick(("dense", "dense", "permuted", "offset")))


for _rank in (1, 2, 3):

    @operator(f"F.conv{_rank}d")
    def _conv(g: Generator, rank: int = _rank) -> str:
        groups = g.pick((1, 1, 1, 2))
        channels, outputs, kernel = g.pick((2, 4)), g.pick((2, 4)), g.pick((1, 2, 3))
        if g.chance(0.2):
            groups = outputs = channels
        x = _images(g, rank, channels)
        weight = g.tensor(dtype_of(g, x), shape=[outputs, channels // groups, *([kernel] * rank)], tame=True)
        bias = [g.tensor(dtype_of(g, x), shape=[outputs], tame=True)] if g.chance(0.5) else []
        rest = f"stride={g.pick((1, 1, 2))}, padding={g.pick((0, 1, 1))}, dilation={g.pick((1, 1, 2))}, groups={groups}"
        return call(g, f"F.conv{rank}d", [x, weight, *bias], rest)

    @operator(f"F.conv_transpose{_rank}d")
    def _conv_transpose(g: Generator, rank: int = _rank) -> str:
        groups, channels, outputs, kernel = g.pick((1, 1, 2)), 4, g.pick((1, 3)), g.pick((1, 2, 3))
        x = _images(g, rank, channels)
        weight = g.tensor(dtype_of(g, x), shape=[channels, outputs, *([kernel] * rank)], tame=True)
        return call(
            g,
            f"F.conv_transpose{rank}d",
            [x, weight],
            f"stride={g.pick((1, 2))}, padding={g.pick((0, 1))}, groups={groups}",
        )

    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"):

        @operator(f"F.{_name}{_rank}d")
        def _pool(g: Generator, name: str = _name, rank: int = _rank) -> str:
            x = _images(g, rank, g.pick((1, 3)))
            if name.startswith("adaptive"):
                return call(g, f"F.{name}{rank}d", [x], f"{g.pick((1, 2, 3))}")
            window = f"{g.pick((2, 3))}, stride={g.pick((1, 2, 2))}"
            if name == "lp_pool":
                return call(g, f"F.lp_pool{rank}d", [x], f"2, {window}")
            rest = f"{window}, padding={g.pick((0, 1))}, ceil_mode={g.chance(0.3)}"
            if name == "max_pool" and g.chance(0.3):
                rest += ", return_indices=True"
            if name == "avg_pool" and g.chance(0.3):
                rest += ", count_include_pad=False"
            return call(g, f"F.{name}{rank}d", [x], rest)

    @operator(f"F.pad{_rank}")
    def _pad(g: Generator, rank: int = _rank) -> str:
        x = _images(g, rank, 2)
        widths = [g.pick((0, 1, 2)) for _ in range(2 * rank)]
        mode = g.pick(("constant", "reflect", "replicate", "circular"))
        if mode == "constant":
            widths[0] = g.pick((-1, 1))
        return call(g, "F.pad", [x], f"{widths}, mode={mode!r}")

    @operator(f"F.interpolate{_rank}")
    def _interpolate(g: Generator, rank: int = _rank) -> str:
        x = _images(g, rank, 2)
        mode = g.pick(
            (
                "nearest",
                "nearest-exact",
                "area",
                ("linear", "bilinear", "trilinear")[rank - 1],
                *(("bicubic",) * (rank == 2)),
            )
        )
        rest = (
            f"size={[g.kind.randint(1, 12) for _ in range(rank)]}"
            if g.chance(0.6)
            else f"scale_factor={g.pick((0.5, 2, 1.7))}"
        )
        if "linear" in mode or mode == "bicubic":
            rest += f", align_corners={g.chance(0.5)}"
        return call(g, "F.interpolate", [x], f"{rest}, mode={mode!r}")


@operator("F.batch_norm")
def _batch_norm(g: Generator) -> str:
    x = _images(g, g.pick((0, 1, 2)), 3)
    mean, variance, weight, bias = (
        g.tensor(dtype_of(g, x), shape=[3], limits=(0.5, 3), layout="dense") for _ in range(4)
    )
    training = g.chance(0.5)
    affine = f"{weight}, {bias}" if g.chance(0.6) else "None, None"
    return f"F.batch_norm({x}, {mean}, {variance}, {affine}, training={training})"


@operator("F.layer_norm")
def _layer_norm(g: Generator) -> str:
    x = g.tensor(_PLANE, (1, 2, 3, 4))
    last = list(g.value(x).shape)[-g.pick((1, 1, 2)) :]
    weights = [g.tensor(dtype_of(g, x), shape=last, tame=True) for _ in range(2)] if g.chance(0.6) else []
    if not weights:
        return call(g, "F.layer_norm", [x], f"{last}")
    return call(g, f"(lambda x, w, b: F.layer_norm(x, {last}, w, b))", [x, *weights])


@operator("F.rms_norm")
def _rms_norm(g: Generator) -> str:
    x = g.tensor(_PLANE, (1, 2, 3))
    last = list(g.value(x).shape)[-1:]
    return call(g, f"(lambda x, w: F.rms_norm(x, {last}, w))", [x, g.tensor(dtype_of(g, x), shape=last, tame=True)])


@operator("F.group_norm")
def _group_norm(g: Generator) -> str:
    x = _images(g, g.pick((1, 2)), 4)
    weight, bias = (g.tensor(dtype_of(g, x), shape=[4], tame=True) for _ in range(2))
    return call(g, f"(lambda x, w, b: F.group_norm(x, {g.pick((1, 2, 4))}, w, b))", [x, weight, bias])


@operator("F.instance_norm")
def _instance_norm(g: Generator) -> str:
    return call(g, "F.instance_norm", [_images(g, g.pick((1, 2)), 3)])


@operator("F.local_response_norm")
def _response(g: Generator) -> str:
    return call(g, "F.local_response_norm", [_images(g, 2, 4)], "2")


@operator("F.normalize")
def _normalize(g: Generator) -> str:
    x = g.tensor(FLOAT, (1, 2, 3))
    return call(g, "F.normalize", [x], f"p={g.pick((2.0, 1.0, 3.0))}, dim={dim_of(g, x)}")


@operator("F.glu")
def _glu(g: Generator) -> str:
    return call(g, "F.glu", [g.tensor(FLOAT, shape=[g.size(), 2 * g.free.randint(1, 9)])])


@operator("F.prelu")
def _prelu(g: Generator) -> str:
    x = _images(g, g.pick((1, 2)), 3)
    return call(g, "F.prelu", [x, g.tensor(dtype_of(g, x), shape=[g.pick((1, 3))])])


@operator("F.pixel_shuffle")
def _pixel_shuffle(g: Generator) -> str:
    return call(g, "F.pixel_shuffle", [_images(g, 2, 4)], "2")


@operator("F.pixel_unshuffle")
def _pixel_unshuffle(g: Generator) -> str:
    return call(g, "F.pixel_unshuffle", [g.tensor(_PLANE, shape=[2, 3, 2 * g.free.randint(1, 4), 4])], "2")


@operator("F.channel_shuffle")
def _channel_shuffle(g: Generator) -> str:
    return call(g, "F.channel_shuffle", [_images(g, 2, 4)], "2")


@operator("F.unfold")
def _unfold(g: Generator) -> str:
    return call(
        g, "F.unfold", [_images(g, 2, 2)], f"{g.pick((2, 3))}, padding={g.pick((0, 1))}, stride={g.pick((1, 2))}"
    )


@operator("F.fold")
def _fold(g: Generator) -> str:
    h, w = g.kind.randint(3, 7), g.kind.randint(3, 7)
    return call(g, "F.fold", [g.tensor(_PLANE, shape=[2, 8, (h - 1) * (w - 1)], tame=True)], f"({h}, {w}), 2")


@operator("F.grid_sample")
def _grid_sample(g: Generator) -> str:
    d = ("float32", "float64")
    x = g.tensor(d, shape=[2, 3, g.free.randint(2, 7), g.free.randint(2, 7)], tame=True)
    grid = g.tensor(dtype_of(g, x), shape=[2, g.free.randint(1, 5), 4, 2], limits=(-1.2, 1.2))
    mode, padding = g.pick(("bilinear", "nearest", "bicubic")), g.pick(("zeros", "border", "reflection"))
    rest = f"mode={mode!r}, padding_mode={padding!r}"
    return call(g, "F.grid_sample", [x, grid], f"{rest}, align_corners={g.chance(0.5)}")


@operator("F.affine_grid")
def _affine_grid(g: Generator) -> str:
    return call(
        g,
        "F.affine_grid",
        [g.tensor(("float32", "float64"), shape=[2, 2, 3])],
        f"[2, 1, {g.size()}, 3], align_corners={g.chance(0.5)}",
    )


@operator("F.scaled_dot_product_attention")
def _attention(g: Generator) -> str:
    b, h, n, m, e = g.pick((1, 2)), g.pick((1, 2)), g.free.randint(1, 17), g.free.randint(1, 17), g.pick((4, 8, 16))
    q = g.tensor(_PLANE, shape=[b, h, n, e], tame=True)
    k, v = (g.tensor(dtype_of(g, q), shape=[b, h, m, e], tame=True) for _ in range(2))
    form = g.pick(("plain", "causal", "mask", "bias"))
    if form == "mask":
        mask = g.line(f"{g.tensor(('bool',), shape=[n, m])} | torch.eye({n}, {m}, dtype=torch.bool, device=DEVICE)")
        return call(g, f"(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask={mask}))", [q, k, v])
    if form == "bias":
        bias = g.tensor(dtype_of(g, q), shape=[n, m], tame=True)
        return call(g, f"(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask={bias}))", [q, k, v])
    return call(g, "F.scaled_dot_product_attention", [q, k, v], "is_causal=True" if form == "causal" else "")


@operator("F.cosine_similarity")
def _cosine(g: Generator) -> str:
    x = g.tensor(_PLANE, (1, 2, 3), tame=True)
    return call(
        g,
        "F.cosine_similarity",
        [x, g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), tame=True)],
        f"dim={dim_of(g, x)}",
    )


@operator("F.pairwise_distance")
def _pairwise(g: Generator) -> str:
    x = g.tensor(_PLANE, (1, 2), tame=True)
    return call(g, "F.pairwise_distance", [x, g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), tame=True)])


# Losses.
_REDUCTION = ("mean", "sum", "none")
_LOSSES = {
    "mse_loss": "", "l1_loss": "", "smooth_l1_loss": "beta=0.7", "huber_loss": "delta=0.8", "soft_margin_loss": "",
    "poisson_nll_loss": "full=True", "hinge_embedding_loss": "margin=0.5", "multilabel_soft_margin_loss": "",
}  # fmt: skip
for _name, _rest in _LOSSES.items():

    @operator(f"F.{_name}")
    def _loss(g: Generator, name: str = _name, rest: str = _rest) -> str:
        x = g.tensor(_PLANE, (1, 2) if name != "multilabel_soft_margin_loss" else (2,), tame=True)
        target = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), limits=(0, 2))
        return call(g, f"F.{name}", [x, target], ", ".join(filter(None, [rest, f"reduction={g.pick(_REDUCTION)!r}"])))


@operator("F.binary_cross_entropy")
def _bce(g: Generator) -> str:
    x = g.tensor(_PLANE, (0, 1, 2), limits=(0.05, 0.95))
    target = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), limits=(0, 1))
    return call(g, "F.binary_cross_entropy", [x, target], f"reduction={g.pick(_REDUCTION)!r}")


@operator("F.binary_cross_entropy_with_logits")
def _bce_logits(g: Generator) -> str:
    x = g.tensor(_PLANE, (0, 1, 2), tame=True)
    target = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), limits=(0, 1))
    return call(g, "F.binary_cross_entropy_with_logits", [x, target], f"reduction={g.pick(_REDUCTION)!r}")


@operator("F.kl_div")
def _kl_div(g: Generator) -> str:
    x = g.tensor(_PLANE, (1, 2), tame=True)
    target = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), limits=(0, 1))
    return call(
        g, "F.kl_div", [x, target], f"reduction={g.pick((*_REDUCTION, 'batchmean'))!r}, log_target={g.chance(0.3)}"
    )


for _name in ("nll_loss", "cross_entropy", "multi_margin_loss"):

    @operator(f"F.{_name}")
    def _class_loss(g: Generator, name: str = _name) -> str:
        n, c = g.size(), g.free.randint(2, 9)
        x = g.tensor(_PLANE if name != "multi_margin_loss" else ("float32", "float64"), shape=[n, c], tame=True)
        target = indices(g, c, [n])
        rest = f"reduction={g.pick(_REDUCTION)!r}"
        if name != "multi_margin_loss" and g.chance(0.4):
            rest += f", ignore_index={g.pick((0, 1))}"
        if name == "cross_entropy" and g.chance(0.3):
            rest += ", label_smoothing=0.1"
        return call(g, f"(lambda x: F.{name}(x, {target}, {rest}))", [x])


@operator("F.multilabel_margin_loss")
def _multilabel(g: Generator) -> str:
    n, c = g.size(), g.free.randint(2, 9)
    x = g.tensor(("float32", "float64"), shape=[n, c], tame=True)
    return call(
        g, f"(lambda x: F.multilabel_margin_loss(x, {g.tensor(('int64',), shape=[n, c], limits=(-1, c - 1))}))", [x]
    )


@operator("F.cosine_embedding_loss")
def _cosine_embedding(g: Generator) -> str:
    x = g.tensor(_PLANE, shape=[g.size(), 5], tame=True)
    y = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), tame=True)
    sign = g.line(f"leaf({g.value(x).dtype}, ({g.value(x).shape[0]},), (1,), 0, [1, -1, -1])")
    return call(g, f"(lambda x, y: F.cosine_embedding_loss(x, y, {sign}, margin=0.1))", [x, y])


for _name in ("margin_ranking_loss", "triplet_margin_loss", "gaussian_nll_loss"):

    @operator(f"F.{_name}")
    def _three(g: Generator, name: str = _name) -> str:
        x = g.tensor(_PLANE, (1, 2), tame=True)
        shape = list(g.value(x).shape)
        y = g.tensor(dtype_of(g, x), shape=shape, tame=True)
        z = g.tensor(dtype_of(g, x), shape=shape, limits=(0.3, 3))
        return call(g, f"F.{name}", [x, y, z], f"reduction={g.pick(_REDUCTION)!r}")


@operator("arange")
def _arange(g: Generator) -> str:
    step = g.pick(("1", "2", "0.5", "-1"))
    ends = (g.free.randint(0, 3), g.free.randint(3, 30)) if step != "-1" else (g.free.randint(3, 30), 0)
    return f"torch.arange({ends[0]}, {ends[1]}, {step}, device=DEVICE, dtype=torch.{g.pick(NUMBER)})"


@operator("linspace")
def _linspace(g: Generator) -> str:
    name = g.pick(("linspace", "linspace", "logspace"))
    return (
        f"torch.{name}({g.pick((-2, 0.5))}, {g.pick((1, 2.5))}, {g.size()}, device=DEVICE, dtype=torch.{g.pick(_REAL)})"
    )


@operator("eye")
def _eye(g: Generator) -> str:
    return f"torch.eye({g.size()}, {g.size()}, device=DEVICE, dtype=torch.{g.pick(ANY)})"


@operator("full")
def _full(g: Generator) -> str:
    return f"torch.full(({g.size()}, {g.size()}), {number(g)}, device=DEVICE, dtype=torch.{g.pick(ANY)})"


@operator("tril_indices")
def _tril_indices(g: Generator) -> str:
    name = g.pick(("tril_indices", "triu_indices"))
    return f"torch.{name}({g.size()}, {g.size()}, {g.pick((0, 1, -1))}, device=DEVICE)"


for _name in ("window hann", "window hamming", "window blackman", "window bartlett", "window kaiser"):

    @operator(_name)
    def _window(g: Generator, name: str = _name) -> str:
        rest = f"periodic={g.chance(0.5)}, dtype=torch.{g.pick(('float32', 'float64'))}, device=DEVICE"
        return f"torch.{name.split()[1]}_window({g.free.randint(1, 20)}, {rest})"


@operator("allclose")
def _allclose(g: Generator) -> str:
    x = g.tensor(FLOAT)
    function = g.pick(("allclose", "equal"))
    return f"torch.{function}({x}, {g.tensor(dtype_of(g, x), shape=list(g.value(x).shape))})"


@operator("is_nonzero")
def _is_nonzero(g: Generator) -> str:
    return f"bool({g.tensor(ANY, (0,))})"


@operator("promote in place")
def _promote(g: Generator) -> str:
    x = g.tensor(INT)
    return f"{x}.{g.pick(('add_', 'mul_', 'div_', 'sub_'))}({g.pick(('1.5', '2', 'True'))})"


@operator("swap memory")
def _resize(g: Generator) -> str:
    x = g.tensor(ANY, (1, 2), layout="dense")
    shape = list(g.value(x).shape)
    if g.value(x).numel() == 0:
        raise Refused
    return f"{x}.clone().resize_({g.free.randint(1, shape[0])})"


@operator("F.dropout")
def _dropout(g: Generator) -> str:
    return f"F.dropout({g.tensor(FLOAT)}, 0.5, training={g.chance(0.5)})"


@operator("rand_like")
def _rand_like(g: Generator) -> str:
    return f"torch.{g.pick(('rand_like', 'randn_like', 'empty_like'))}({g.tensor(FLOAT)})"


@operator("renorm")
def _renorm(g: Generator) -> str:
    x = g.tensor(("float32", "float64"), (2, 3), tame=True)
    return call(g, "torch.renorm", [x], f"2, {dim_of(g, x)}, 1.5", method="renorm_")


@operator("gradient of spacing")
def _spacing(g: Generator) -> str:
    return f"torch.gradient({g.tensor(('float32', 'float64'), shape=[g.free.randint(3, 9), g.free.randint(3, 9)])})"


@operator("polar numbers")
def _complex(g: Generator) -> str:
    x = g.tensor(("float32", "float64"), (1, 2), tame=True)
    y = g.tensor(dtype_of(g, x), shape=list(g.value(x).shape), tame=True)
    return f"torch.complex({x}, {y}).{g.pick(('abs()', 'real', 'imag', 'conj().imag'))}"


@operator("fft")
def _fft(g: Generator) -> str:
    x = g.tensor(("float32", "float64"), (1, 2), tame=True, empty=False)
    return f"torch.fft.{g.pick(('fft', 'rfft', 'ifft'))}({x}).abs()"
