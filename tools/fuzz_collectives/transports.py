# SPDX-License-Identifier: Apache-2.0
"""Ways that contents take between ranks, as variables of each rank's environment."""

from __future__ import annotations

_PLAIN = {"OUTBOARD_DRIVER": "host", "OUTBOARD_TRANSPORT": "gloo"}
_STRICT = _PLAIN | {"OUTBOARD_DRIVER": "strict"}

#: By name: what every rank has.
TRANSPORTS: dict[str, dict[str, str]] = {
    "shared": _PLAIN,
    "sockets": _PLAIN | {"OUTBOARD_SHARED_MEMORY": "0"},
    "staged": _STRICT,
    "staged-sockets": _STRICT | {"OUTBOARD_SHARED_MEMORY": "0"},
    "mixed": _PLAIN,
    "driver": {"OUTBOARD_DRIVER": "sim", "OUTBOARD_TRANSPORT": "driver"},
    "strict-driver": {"OUTBOARD_DRIVER": "strict", "OUTBOARD_TRANSPORT": "driver"},
    "mpi": _PLAIN | {"OUTBOARD_TRANSPORT": "mpi"},
}
#: Where gloo itself reduces, MIN and MAX may lose numbers that are none (NaN), as on CPU tensors: programs have none of
#: these there. Everywhere else they are kept.
WITHOUT_NONES = ("sockets", "staged-sockets")
#: What a long run goes through.
USUAL = [name for name in TRANSPORTS if name != "mpi"]


def environment(transport: str, rank: int) -> dict[str, str]:
    """What a rank has in its environment for a transport."""
    variables = dict(TRANSPORTS[transport])
    if transport == "mixed" and rank % 2:
        variables["OUTBOARD_DRIVER"] = "strict"
    if transport == "strict-driver":
        from outboard import drivers

        variables["OUTBOARD_STRICT_DRIVER"] = drivers.sim()
    return variables
