# SPDX-License-Identifier: Apache-2.0
"""Runs programs as several ranks. ``--help`` lists the options; ``make fuzz-collectives`` is a long run."""

from __future__ import annotations

import os
import sys

# Ranks are forked from this process, and open the device for themselves.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from tools.fuzz_collectives.command import main  # noqa: E402

sys.exit(main())
