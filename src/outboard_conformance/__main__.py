# SPDX-License-Identifier: Apache-2.0
"""``python -m outboard_conformance``."""

import argparse
import sys

from outboard_conformance import command

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m outboard_conformance", description=command.__doc__)
    command.configure(parser)
    sys.exit(command.run(parser.parse_args()))
