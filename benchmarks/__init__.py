# SPDX-License-Identifier: Apache-2.0
"""Measurements against CPU eager and CPU Inductor, always in the same run. ``make bench`` runs ``bench.py``."""
