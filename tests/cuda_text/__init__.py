# SPDX-License-Identifier: Apache-2.0
"""Programs in CUDA C++, run by the host driver on the processor: ``python -m tests.cuda_text``."""
