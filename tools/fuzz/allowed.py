# SPDX-License-Identifier: Apache-2.0
"""Every difference from PyTorch on the CPU that is legitimate, each with its reason. As few and as narrow as can be."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tools.fuzz.program import tensors

#: How PyTorch on the CPU says that it has no kernel for a dtype: then it is no oracle, and the device may have one.
_CPU_LACKS = re.compile(r"not implemented for|not supported (for|on) CPU")

#: Results of these depend on the generator, which is another on each device: only their form is compared.
RANDOM = re.compile(
    r"\b(dropout|alpha_dropout|feature_dropout|rand_like|randn_like|randint_like|bernoulli|multinomial|normal_|uniform_"
    r"|random_|exponential_|cauchy_|geometric_|log_normal_|rrelu)\("
)
#: Results of these are memory as it was found, unless deterministic algorithms are asked for.
UNINITIALISED = re.compile(r"\b(empty_like|new_empty)\(")

#: Not drawn for expanded operands: the CPU's kernel reorders elements in place, and finds wrong medians where they
#: share memory (``x.expand(4, 6).median(0)`` is not ``x``).
NOT_EXPANDED = ("median", "nanmedian")
#: Not drawn for NaN: the CPU sorts with ``<``, which puts NaN nowhere, so that its result depends on the order.
NOT_NAN = ("mode",)
#: Which of equal elements' places is given is not said: only values are compared.
ANY_PLACE = ("median", "nanmedian", "mode")

#: Gradients of these are not drawn for equal values, of which one gets all: of more than 16 the CPU's sort, which is
#: not the stable one, takes any.
ANY_GRADIENT = ("quantile", "nanquantile")

#: The mean beside a variance. The CPU moves it on from element to element, and an infinity among them makes it NaN,
#: where ``torch.mean`` of the same numbers, on the CPU as here, is infinite.
_MEAN_BESIDE = re.compile(r"^torch\.(var|std)_mean\(")

#: Writing to expanded tensors, which PyTorch calls deprecated here, does not notice there, and refuses elsewhere: what
#: comes of it depends on the order of the elements. The device refuses.
_DEPRECATED_ON_EXPANDED = re.compile(r"\.(masked_fill_|masked_scatter_|index_fill_|index_put_)\(|\bassign\(|\bout=")
_EXPANDED = "more than one element of the written-to tensor"

#: Here CPU and CUDA lay out results differently for inputs that are dense but not contiguous, and the device does as
#: CUDA: ``empty_like`` keeps the input's strides, channels are shuffled by views and a copy, and pooling in one
#: dimension is pooling in two, which the CPU does only where it needs gradients.
LIKE_CUDA = re.compile(r"\bF\.(batch_norm|instance_norm|max_pool1d|channel_shuffle)\(")

#: In three dimensions the CPU chooses between two kernels by sizes and threads, of which one keeps the channels last.
_CONVOLUTION_3D = re.compile(r"\bF\.conv3d\(")

#: A roll by whole turns is contiguous on the CPU, one by any other number lies as its input.
_TURN = re.compile(r"\.roll\(")

#: In float64, too, PyTorch multiplies by a sixth that is rounded to float32; the device divides by six.
_SIXTH = re.compile(r"^gradient\(lambda a0: F\.hardsigmoid\(")

#: Gradients of functions in pieces at NaN: the CPU's vectors take another piece than its scalars, which finish a row.
#: The device does as the scalars, and CUDA.
_IN_PIECES = re.compile(r"^gradient\(lambda a0: F\.(hardshrink|softshrink|relu6|hardtanh|elu|celu|selu)\(")

#: Correlations of a row whose elements are all the same: its deviations from the mean are nothing, or what the mean has
#: lost in rounding, which is divided by itself.
_CORRELATION = re.compile(r"\.corrcoef\(")

#: Normalizations of elements that are all the same: what remains of them is nothing, or what the mean has lost in
#: rounding, divided by the root of epsilon.
_NORMALIZATION = re.compile(r"\bF\.(batch|instance|group|layer)_norm\(")

#: The difference of two distances, each rounded as what it is.
_DISTANCES = re.compile(r"^F\.triplet_margin_loss\(")

#: What ``quantile`` is asked for is not looked at if it is on a device: one would have to wait for it. CUDA does not.
_LOOKED_AT = "quantile() q values must be in the range [0, 1]"


#: Not drawn for graphs, because of what PyTorch's own compiler does on the CPU as well: it takes a product with the
#: integer 0 or with False for 0 even of NaN and infinities, and writes to a tensor that is twice in a list as if it
#: were two.
_CHANGED_IN_GRAPHS = re.compile(
    r"^(?:0|False) [*/] |\bmul_?\((v\S+, )?0\)|\b_foreach_\w+_\(\[[^]]*(v\d+(?:\[\d+\])?), (?:[^]]*, )?\2[],]"
    r"|\.expand\(.*\.(zero|fill)_\("
)


#: Reads its last operand elsewhere than it writes: of the same elements, the order decides as well.
_READS_ELSEWHERE = re.compile(r"\b(v\d+)\.masked_scatter_\(.*\b\1\)")

#: Shows the last bit of what rounding has left, which lines before it may have rounded otherwise.
_SHOWS_BITS = re.compile(r"\.view\(torch\.")

_TENSOR = re.compile(r"\bv\d+")
#: Nor are lists of which a tensor is written before it is read as another's operand: graphs read all first.
_LISTS = re.compile(r"\b_foreach_\w+_\(\[(.*?)\], \[(.*)\]")


def _reads_what_it_wrote(line: str) -> bool:
    found = _LISTS.search(line)
    if found is None:
        return False
    written, read = ([set(_TENSOR.findall(item)) for item in found[part].split(", ")] for part in (1, 2))
    return any(before & names for place, names in enumerate(read) for before in written[:place])


def in_graphs(line: str) -> bool:
    """Whether a line means the same in a graph, by PyTorch's own compiler."""
    different = (_CHANGED_IN_GRAPHS, _READS_ELSEWHERE, _SHOWS_BITS)
    return not any(what.search(line) for what in different) and not _reads_what_it_wrote(line)


def only_cpu_raises(line: str, error: Exception) -> bool:
    """Whether the CPU's exception is about a kernel that the CPU does not have, or a number it need not wait for."""
    return isinstance(error, NotImplementedError) or bool(_CPU_LACKS.search(str(error))) or str(error) == _LOOKED_AT


def only_device_raises(line: str, error: Exception) -> bool:
    """Whether the device's exception is about what PyTorch has deprecated."""
    return _EXPANDED in str(error) and bool(_DEPRECATED_ON_EXPANDED.search(line))


def other_exception(line: str, ours: Exception, theirs: Exception) -> bool:
    """Whether both refuse, with types that differ for a good reason: the CPU's is about its own lack of a kernel, or
    PyTorch's tracing has one of its own."""
    return only_cpu_raises(line, theirs) or line.startswith("compiled(")


def strides(line: str, ours: Tensor, theirs: Tensor) -> bool:
    """Whether other strides than the CPU's are right."""
    if _CONVOLUTION_3D.search(line):
        return theirs.is_contiguous() and ours.is_contiguous(memory_format=torch.channels_last_3d)
    return bool(LIKE_CUDA.search(line)) or (theirs.is_contiguous() and bool(_TURN.search(line)))


def overlap(line: str, operands: list[object]) -> bool:
    """Whether operands of a line that writes share memory without being the same elements. PyTorch refuses where it
    notices; where it does not, as with tensors that have gaps, the order of the elements decides."""
    found = tensors(operands)
    return (
        bool(_READS_ELSEWHERE.search(line))
        or any(
            one.untyped_storage()._cdata == other.untyped_storage()._cdata  # noqa: SLF001 - its identity
            and (one.storage_offset(), one.shape, one.stride()) != (other.storage_offset(), other.shape, other.stride())
            for index, one in enumerate(found)
            for other in found[:index]
        )
    )


def expected(line: str, part: int, ours: Tensor, theirs: Tensor, operands: list[Tensor]) -> Tensor:
    """What the device's value is compared with: the CPU's, but for elements where another one is as right."""
    if _IN_PIECES.search(line):
        return torch.where(operands[0].isnan(), ours, theirs)
    if part == 1 and _MEAN_BESIDE.search(line):
        return torch.where(theirs.isnan() & ours.isinf(), ours, theirs)
    if _DISTANCES.search(line):
        longest = max(float(x.float().norm()) for x in operands)
        return torch.where((ours - theirs).abs() <= 4 * torch.finfo(theirs.dtype).eps * longest, ours, theirs)
    if _CORRELATION.search(line):
        rows = torch.atleast_2d(operands[0])
        constant = (rows == rows[:, :1]).all(1)  # one without elements, too
        if theirs.numel() == len(constant) ** 2:  # else the operand is only a part of these
            return torch.where((constant[:, None] | constant).reshape(theirs.shape), ours, theirs)
    if (
        _NORMALIZATION.search(line)
        and theirs.is_floating_point()
        and bool((operands[0] == operands[0].flatten()[:1]).all())
    ):
        return torch.where(
            torch.isclose(ours, theirs, rtol=0, atol=2**14 * torch.finfo(theirs.dtype).eps), ours, theirs
        )
    if theirs.dtype == torch.float64 and _SIXTH.search(line):
        return torch.where(torch.isclose(ours, theirs, rtol=1e-7, atol=0), ours, theirs)
    return theirs


def values(line: str, *, filled: bool = False) -> bool:
    """Whether numbers of the results are not comparable; ``filled``: whether memory without contents is filled."""
    return bool(RANDOM.search(line)) or (not filled and bool(UNINITIALISED.search(line)))
