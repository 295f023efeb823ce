# SPDX-License-Identifier: Apache-2.0
"""Tells what cannot be compiled from what is a fault of ours."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

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

from ...dialects import Unsupported
from ...plans.builder import NotExpressible

#: What says of itself that something cannot be compiled.
_REFUSALS = (
    NotExpressible,
    Unsupported,
    NotImplementedError,
    MissingOperatorWithDecomp,
    OperatorIssue,
    DynamoUnsupported,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
    sympy.SympifyError,
)
#: Those of them that say that there is no kernel for an operator, or none for such values.
_UNSUPPORTED = (
    NotImplementedError,
    MissingOperatorWithDecomp,
    OperatorIssue,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
#: What the lowering of a graph raises for any error inside.
_WRAPPERS = (InductorError, LoweringException)
#: How PyTorch's compiler fails where it meets what it was not made for.
_LIMITS = (AssertionError, AttributeError, KeyError)
#: What PyTorch says where a decomposition computes with floats of 8 bits.
_NO_PROMOTION = "Promotion for Float8 Types is not supported"
#: What PyTorch raises for wrong arguments.
_COMPLAINTS = (RuntimeError, IndexError, ValueError, TypeError)
_OURS = str(Path(__file__).parents[2]) + os.sep


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that the call cannot be compiled, so that it must run elsewhere: an exception made to say
    so, or PyTorch's compiler at its limits. What our own code raises beside such exceptions is a fault of ours, and any
    other error of PyTorch's the operator's own complaint about its arguments."""
    cause = _cause(error)
    if isinstance(cause, _REFUSALS) or str(cause).startswith(_NO_PROMOTION):
        return True
    return not _is_ours(cause) and (cause is not error or isinstance(cause, _LIMITS))


def is_unsupported(error: BaseException) -> bool:
    """Whether a refusal is about the operator itself, for which there is no kernel, and not about how one came out."""
    cause = _cause(error)
    return isinstance(cause, _UNSUPPORTED) or str(cause).startswith(_NO_PROMOTION)


def is_complaint(error: BaseException) -> bool:
    """Whether an error may be PyTorch's word on the arguments of a call: of a type that it raises for wrong ones, and
    raised by its code."""
    cause = _cause(error)
    return not _is_ours(cause) and isinstance(cause, _COMPLAINTS)


def place_of(error: BaseException) -> str:
    """The file and line of ours that an error came through last."""
    frames = traceback.extract_tb(_cause(error).__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    last = ours[-1] if ours else frames[-1] if frames else None
    return "an unknown place" if last is None else f"{last.filename.removeprefix(_OURS)}:{last.lineno}"


def _cause(error: BaseException) -> BaseException:
    """The error that the lowering wrapped."""
    while isinstance(error, _WRAPPERS) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_ours(error: BaseException) -> bool:
    """Whether code of ours raised an error."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return bool(frames) and frames[-1].filename.startswith(_OURS)
