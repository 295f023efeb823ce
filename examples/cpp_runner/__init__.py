# SPDX-License-Identifier: Apache-2.0
"""Exported models in a C++ program."""
