# SPDX-License-Identifier: Apache-2.0
"""What a program did on the device: as a page, ``outboard report``, or in ten lines, ``torch.<device>.explain``."""

from outboard.reporting.explanation import Difference, Explanation, explain, explain_steady
from outboard.reporting.page import render
from outboard.reporting.recording import Report, record

__all__ = ["Difference", "Explanation", "Report", "explain", "explain_steady", "record", "render"]
