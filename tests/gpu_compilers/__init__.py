# SPDX-License-Identifier: Apache-2.0
"""Programs for GPUs, compiled by their vendors' compilers: ``python -m tests.gpu_compilers``."""
