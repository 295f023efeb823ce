# SPDX-License-Identifier: Apache-2.0
"""Tells what the compiler cannot do from what the user did wrong."""

from __future__ import annotations

import sympy
from torch._dynamo.exc import Unsupported as DynamoUnsupported
from torch._inductor.exc import InductorError, LoweringException, MissingOperatorWithDecomp, OperatorIssue
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..builder import NotExpressible
from ..dialects.opencl import Unsupported

_REFUSALS = (
    NotExpressible,
    Unsupported,
    NotImplementedError,
    LoweringException,
    InductorError,
    MissingOperatorWithDecomp,
    OperatorIssue,
    DynamoUnsupported,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
    sympy.SympifyError,
    AssertionError,
    AttributeError,
    KeyError,
)


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that the call cannot be compiled, so that it must run elsewhere; any other error is the
    operator's own complaint about its arguments."""
    return isinstance(error, _REFUSALS)
