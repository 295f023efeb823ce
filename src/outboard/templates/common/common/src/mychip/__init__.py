"""mychip for PyTorch, by Outboard. Nothing needs to be imported: `import torch` finds the device "mychip"."""

from pathlib import Path


def library_path() -> str:
    """The driver's library."""
    return str(next(Path(__file__).parent.glob("libmychip*.so")))
