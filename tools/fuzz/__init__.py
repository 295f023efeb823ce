# SPDX-License-Identifier: Apache-2.0
"""Differential fuzzing: random programs on the device, eager and compiled, against PyTorch on the CPU."""
