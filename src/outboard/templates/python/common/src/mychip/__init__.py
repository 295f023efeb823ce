"""mychip for PyTorch, by Outboard. Nothing needs to be imported: `import torch` finds the device "mychip"."""

import os
import sys
from pathlib import Path


def library_path() -> str:
    """The driver's library. It runs driver.py with the Python that asks for it."""
    os.environ.setdefault("OUTBOARD_DRIVER_PYTHON", sys.executable)
    return str(next(Path(__file__).parent.glob("libmychip*.so")))
