# SPDX-License-Identifier: Apache-2.0
"""Tells the host driver where oneDNN is that was installed with pip.

The package ``onednn-cpu-gomp`` is nothing but libraries, which pip puts into the environment's ``lib``.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

#: The library that the driver opens; without it, ``libdnnl.so.3`` where the system finds it. "0" is no library.
VARIABLE = "OUTBOARD_HOST_ONEDNN"


def expose() -> None:
    """Names the package's library, if it is installed and the user has named none."""
    if os.environ.get(VARIABLE):
        return
    library = installed()
    if library is not None:
        os.environ[VARIABLE] = str(library)


def installed() -> Path | None:
    """The path of oneDNN in this environment, or None."""
    library = Path(sysconfig.get_path("data")) / "lib" / "libdnnl.so.3"
    return library if library.is_file() else None
