# SPDX-License-Identifier: Apache-2.0
"""Whole graphs of ``torch.compile``: compiled, cached, replayed, and run where the device has no dialect."""
