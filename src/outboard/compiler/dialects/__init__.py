# SPDX-License-Identifier: Apache-2.0
"""Kernel languages: a prelude of helper functions and a printer for each."""
