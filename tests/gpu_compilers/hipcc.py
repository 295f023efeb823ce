# SPDX-License-Identifier: Apache-2.0
"""hipcc, in Debian's package of that name, which needs no GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .errors import CompileError


class Hipcc:
    """Compiles programs for one architecture, as hipRTC would: HIP's runtime header first, the device's code alone."""

    def __init__(self, architecture: str) -> None:
        hipcc = shutil.which("hipcc")
        if hipcc is None:
            raise FileNotFoundError("hipcc is not there: apt-get install hipcc")
        self._command = [
            hipcc, f"--offload-arch={architecture}", "--cuda-device-only", "-x", "hip", "-std=c++17", "-O1", "-Werror",
            "-Wno-unused-command-line-argument", "-include", "hip/hip_runtime.h", "-c", "-o",
        ]  # fmt: skip
        # It takes a compiler of NVIDIA's that is installed for a wish.
        self._environment = os.environ | {"HIP_PLATFORM": "amd", "HIP_COMPILER": "clang", "HIP_RUNTIME": "rocclr"}

    def compile(self, source: str) -> list[str]:
        """Compiles a program to machine code; what kernels keep in memory is not known. Raises CompileError."""
        with tempfile.TemporaryDirectory() as folder:
            text, code = Path(folder, "program.hip"), Path(folder, "program.o")
            text.write_text(source)
            command = [*self._command, str(code), str(text)]
            done = subprocess.run(command, capture_output=True, text=True, env=self._environment)
            if done.returncode != 0 or not code.exists():
                raise CompileError(done.stdout + done.stderr)
        return []
