# SPDX-License-Identifier: Apache-2.0
"""What a program did on the device, as one page: ``outboard report``."""

from outboard.reporting.page import render
from outboard.reporting.recording import Report, record

__all__ = ["Report", "record", "render"]
