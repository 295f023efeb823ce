# SPDX-License-Identifier: Apache-2.0
"""Kernels as nests of loops: what they are, how they are rewritten, and all that is decided about them."""
