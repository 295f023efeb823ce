# SPDX-License-Identifier: Apache-2.0
"""The programs, by what of PyTorch's they are about."""
