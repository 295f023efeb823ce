# SPDX-License-Identifier: Apache-2.0
"""Runs programs until a number of operators is reached. ``--help`` lists the options; ``make fuzz`` is a long run."""

from __future__ import annotations

import sys

from tools.fuzz.command import main

sys.exit(main())
