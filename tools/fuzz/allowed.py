# SPDX-License-Identifier: Apache-2.0
"""Every difference from PyTorch on the CPU that is legitimate, each with its reason. As few and as narrow as can be."""

from __future__ import annotations

import re

from torch import Tensor

#: How PyTorch on the CPU says that it has no kernel for a dtype: then it is no oracle, and the device may have one.
_CPU_LACKS = re.compile(r"not implemented for|not supported (for|on) CPU|does not support (bool|automatic)")

#: Results of these depend on the generator, which is another on each device: only their form is compared.
RANDOM = re.compile(
    r"\b(dropout|alpha_dropout|feature_dropout|rand_like|randn_like|randint_like|bernoulli|multinomial|normal_|uniform_"
    r"|random_|exponential_|cauchy_|geometric_|log_normal_|rrelu|empty_like|new_empty)\("
)

#: Operators whose mending is under way elsewhere; empty when that is done.
PENDING: tuple[str, ...] = (
    "erfcx", "clamp", "clip", "sin", "cos", "tan", "sinc", "digamma", "psi", "nextafter", "ldexp", "floor_divide",
    "remainder",    "rounding_mode", "masked_scatter", "multilabel_margin_loss", "var", "std", "var_mean", "std_mean",
)  # fmt: skip
#: The same for strides alone.
PENDING_STRIDES = ("logsigmoid", "silu", "fmin", "fmax", "xlogy", "lerp", "index_select", r"conv\dd")


def is_pending(line: str) -> bool:
    """Whether a line has an operator that is left out for now."""
    return any(re.search(rf"\b{name}_?\b", line) for name in PENDING) or " // " in line or " % " in line


def only_cpu_raises(line: str, error: Exception) -> bool:
    """Whether the CPU's exception is about a kernel that the CPU does not have."""
    return isinstance(error, NotImplementedError) or bool(_CPU_LACKS.search(str(error)))


def other_exception(line: str, ours: Exception, theirs: Exception) -> bool:
    """Whether both refuse, with types that differ for a good reason: the CPU's is about its own lack of a kernel."""
    return only_cpu_raises(line, theirs)


def strides(line: str, ours: Tensor, theirs: Tensor) -> bool:
    """Whether other strides than the CPU's are right."""
    return any(re.search(rf"\b{name}_?\b", line) for name in PENDING_STRIDES)


def values(line: str) -> bool:
    """Whether numbers of the results are not comparable."""
    return bool(RANDOM.search(line))
