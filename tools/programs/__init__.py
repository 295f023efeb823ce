# SPDX-License-Identifier: Apache-2.0
"""Whole programs of users' on the device against the CPU, judged by all that a program shows."""
