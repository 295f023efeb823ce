# SPDX-License-Identifier: Apache-2.0
"""Sizes that vary, on devices whose compiler knows fixed ones: one executable for many, by padding."""
