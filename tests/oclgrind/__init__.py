# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs on Oclgrind, which finds accesses outside of tensors and races between work-items."""
