# SPDX-License-Identifier: Apache-2.0
"""The profile ``ve``: what SOL's documents promise, each program in a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

from conftest import RunPython

PACKAGE = Path(__file__).parents[2] / "packages" / "ve"


def _run(run_python: RunPython, source: str, **variables: str) -> str:
    """Runs a program under the profile, with the package ``sol`` importable."""
    prefix = f"import sys; sys.path.insert(0, {str(PACKAGE)!r})\n"
    return run_python(prefix + textwrap.dedent(source), OUTBOARD_PROFILE="ve", **variables)


def test_the_vector_engine_snippet(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        import sol.pytorch as sol
        model = torch.nn.Linear(3, 2)
        optimized = sol.optimize(model, torch.rand(1, 3))
        optimized.ve()
        assert isinstance(optimized, torch.nn.Module) and model.weight.device.type == "ve"
        try:
            sol.optimize("not a module")
        except TypeError:
            pass
        else:
            raise AssertionError
        """,
    )
