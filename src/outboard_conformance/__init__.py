# SPDX-License-Identifier: Apache-2.0
"""A conformance kit for drivers: what ``driver.h`` says, clause by clause, tried on a driver.

``outboard conform --driver LIB`` runs it, and so does ``python -m outboard_conformance``, which needs no PyTorch up to
the level ``kernels``. Each clause runs in a worker process, so that a driver that crashes or hangs is reported by the
clause that it broke and the next clauses run nevertheless. See ``docs/conformance.md``.
"""
