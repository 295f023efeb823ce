# SPDX-License-Identifier: Apache-2.0
"""Programs in CUDA C++, compiled by NVRTC: ``python -m tests.nvrtc``."""
