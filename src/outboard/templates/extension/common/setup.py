"""Builds the driver. What the package is called and offers stands in pyproject.toml."""

import importlib.util
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

# Without importing it, which would look for devices.
found = importlib.util.find_spec("outboard")
if found is None:
    sys.exit("Outboard is not here: install its wheel first, and then this by `pip install --no-build-isolation .`")
OUTBOARD = Path(found.origin).parent

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
