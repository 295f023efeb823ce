"""Builds the driver. What the package is called and offers stands in pyproject.toml."""

import importlib.util
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

# Without importing it, which would look for devices.
OUTBOARD = Path(importlib.util.find_spec("outboard").origin).parent

setup(
    ext_modules=[
        Extension(
            "mychip.libmychip",
            sources=sorted(glob("src/mychip/*.c")),
            include_dirs=[str(OUTBOARD / "include")],
            extra_compile_args=["-std=c11"],
            libraries=["dl", "m"],
        )
    ]
)
