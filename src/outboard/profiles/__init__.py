# SPDX-License-Identifier: Apache-2.0
"""Profiles: the device's public face as data.

A profile names the device and adds what users of that name expect. ``OUTBOARD_PROFILE`` selects one by name; another
package offers its own through the entry-point group ``outboard.profiles`` (an object of type :class:`Profile`).
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from outboard.profiles.alias import install
from outboard.profiles.profile import Profile

__all__ = ["Profile", "install", "selected"]


def selected() -> Profile:
    """The profile that ``OUTBOARD_PROFILE`` names, or the default one.

    Raises:
        ValueError: if no profile has that name.
    """
    from outboard.profiles import default, rbln, ve

    wanted = os.environ.get("OUTBOARD_PROFILE") or default.PROFILE.name
    known = {profile.name: profile for profile in (default.PROFILE, rbln.PROFILE, ve.PROFILE)}
    if wanted in known:
        return known[wanted]
    offered = {entry.name: entry for entry in entry_points(group="outboard.profiles")}
    if wanted in offered:
        profile: Profile = offered[wanted].load()
        return profile
    raise ValueError(f"OUTBOARD_PROFILE={wanted!r} is not a profile; known are {', '.join([*known, *offered])}")
