# SPDX-License-Identifier: Apache-2.0
"""Code of users' and vendors' own on the device: borrowed memory, kernels, functions of libraries."""
