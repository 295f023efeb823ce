# SPDX-License-Identifier: Apache-2.0
"""What compilers of GPUs say."""


class CompileError(Exception):
    """What a compiler says of a program that it refuses."""
