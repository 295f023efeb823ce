# SPDX-License-Identifier: Apache-2.0
"""Modules whose calls are captured when they repeat, and replayed: ``outboard.graphed``."""
