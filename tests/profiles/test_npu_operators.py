# SPDX-License-Identifier: Apache-2.0
"""Operators of ``torch_npu``: each against its documented formula, and docs/npu-operators.md names all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunPython

ROOT = Path(__file__).parents[2]
PATH = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'packages' / 'npu')!r}, {str(ROOT / 'tools')!r}]\n"


def _run(run_python: RunPython, source: str) -> str:
    return run_python(PATH + source, OUTBOARD_PROFILE="npu")


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_each_operator_computes_its_formula(how: str, run_python: RunPython) -> None:
    _run(run_python, f"from tests.profiles import npu_operators; npu_operators.main({how!r})")


def test_each_operator_has_its_published_arguments(run_python: RunPython) -> None:
    _run(
        run_python,
        """
import inspect, torch, torch_npu
from torch_npu import operators

for name, function in operators.FUNCTIONS.items():
    ours = inspect.signature(function).parameters
    schema = torch._C.parse_schema(operators.schemas()[name][-1 if "out" in ours else 0])
    for argument, parameter in zip(schema.arguments, ours.values(), strict=True):
        assert argument.name == parameter.name, (name, argument.name)
        assert argument.kwarg_only == (parameter.kind is parameter.KEYWORD_ONLY), (name, argument.name)
        default = argument.default_value if argument.has_default_value() else parameter.empty
        assert default == parameter.default, (name, argument.name, default)
    assert getattr(torch_npu, name) is function and name in torch_npu.__all__
""",
    )


def test_the_page_names_every_operator(run_python: RunPython) -> None:
    made = _run(run_python, "import npu_names; print(npu_names.page(), end='')")
    assert (ROOT / "docs" / "npu-operators.md").read_text() == made, "tools/npu_names.py writes the page anew"


def test_what_is_not_there_says_where_the_reason_is(run_python: RunPython) -> None:
    _run(
        run_python,
        """
import torch_npu
try:
    torch_npu.npu_mla_prolog
except AttributeError as error:
    assert "docs/npu-operators.md" in str(error), error
else:
    raise AssertionError
""",
    )
