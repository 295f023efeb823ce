# SPDX-License-Identifier: Apache-2.0
"""All clauses, by what they are about. Importing this registers them."""

from outboard_conformance.clauses import (  # noqa: F401, I001 - in the order in which they are tried
    tables,
    devices,
    memory,
    streams,
    events,
    threads,
    copies,
    fills,
    programs,
    launches,
    submissions,
    libraries,
    executables,
    resets,
    operators,
    models,
)
