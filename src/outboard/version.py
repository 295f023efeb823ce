# SPDX-License-Identifier: Apache-2.0
"""The version of Outboard."""

__version__ = "0.1.0"
