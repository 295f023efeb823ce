# SPDX-License-Identifier: Apache-2.0
"""``python -m outboard.cli``."""

import sys

from outboard.cli import main

sys.exit(main())
