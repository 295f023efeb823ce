# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.programs --driver sim --way eager --match autograd``."""

import sys

from tools.programs.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
