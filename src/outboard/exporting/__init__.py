# SPDX-License-Identifier: Apache-2.0
"""Models as files that run without being traced: ``outboard.export``, ``outboard.load`` and their format.

``format`` describes the file, ``weights`` the tensors in and beside it; ``exporter`` writes it and ``loader`` runs it.
``csrc/runner`` runs the same file without Python.
"""
