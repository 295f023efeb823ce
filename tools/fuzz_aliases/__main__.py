# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.fuzz_aliases``."""

import sys

from tools.fuzz_aliases.command import main

if __name__ == "__main__":
    sys.exit(main())
