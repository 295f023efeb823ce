# SPDX-License-Identifier: Apache-2.0
"""``outboard conform``: tries a driver against driver.h, clause by clause (:mod:`outboard_conformance`)."""

from outboard_conformance.command import HELP, configure, run

__all__ = ["HELP", "configure", "run"]
