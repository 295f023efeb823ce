# SPDX-License-Identifier: Apache-2.0
"""Operators as graphs: decompositions of ours and corrected ones of PyTorch's, their shapes, strides and rounding."""
