# SPDX-License-Identifier: Apache-2.0
"""The profile ``rbln``: what torch-rbln's documents promise, each program in a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

from conftest import RunPython

PACKAGE = Path(__file__).parents[2] / "packages" / "rbln"


def _run(run_python: RunPython, source: str, **variables: str) -> str:
    """Runs a program under the profile, with the package ``torch_rbln`` importable."""
    prefix = f"import sys; sys.path.insert(0, {str(PACKAGE)!r})\n"
    return run_python(prefix + textwrap.dedent(source), OUTBOARD_PROFILE="rbln", **variables)


def test_the_package_has_its_modules(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch, torch_rbln, torch_rbln.device, torch.rbln
        from torch_rbln import memory
        assert torch_rbln.device is torch.rbln and memory is torch.rbln.memory
        assert torch_rbln.memory.memory_stats is torch.rbln.memory_stats
        """,
    )
