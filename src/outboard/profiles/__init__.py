# SPDX-License-Identifier: Apache-2.0
"""Profiles: the device's public face as data.

A profile names the device and adds what users of that name expect. The environment variable ``OUTBOARD_PROFILE``
selects one by name. Unset, it is the one that an installed package offers through the entry-point group
``outboard.profiles`` (an object of type :class:`Profile`), and the default one if there is none, or more than one.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import torch

from outboard.profiles.profile import Profile

__all__ = ["Choice", "Profile", "choose", "in_force", "install", "load", "require"]

_DEFAULT = "ocl"

#: Where Outboard's own profiles are. Only the one in force is imported.
_BUILT_IN = {
    _DEFAULT: "outboard.profiles.default",
    "rbln": "outboard.profiles.rbln",
    "npu": "outboard.profiles.npu",
    "ve": "outboard.profiles.ve",
}


@dataclass(frozen=True)
class Choice:
    """The profile that a process uses, and why.

    Attributes:
        name: the profile's name.
        reason: why this one, as part of a sentence.
        problem: what to do if installed packages offer several, and nobody chose one of them; else "".
    """

    name: str
    reason: str
    problem: str = ""


_in_force: Choice | None = None


def choose() -> Choice:
    """Decides which profile this process is to have."""
    if wanted := os.environ.get("OUTBOARD_PROFILE"):
        return Choice(wanted, "OUTBOARD_PROFILE names it")
    offered = {entry.name: entry for entry in _offered()}
    if len(offered) == 1:
        ((name, entry),) = offered.items()
        return Choice(name, f"{_distribution(entry)} is installed")
    return Choice(_DEFAULT, "the default", _undecided(offered) if offered else "")


def load(choice: Choice) -> Profile:
    """The profile itself.

    Raises:
        ValueError: if no profile has that name.
        TypeError: if what a package offers under it is not a profile.
    """
    if (module := _BUILT_IN.get(choice.name)) is not None:
        profile = importlib.import_module(module).PROFILE
    else:
        offered = {entry.name: entry for entry in _offered()}
        if choice.name not in offered:
            known = ", ".join(sorted({*_BUILT_IN, *offered}))
            raise ValueError(f"OUTBOARD_PROFILE={choice.name!r} is not a profile; known are {known}")
        profile = offered[choice.name].load()
    if not isinstance(profile, Profile):
        raise TypeError(f"the profile {choice.name!r} is a {type(profile).__name__}, not an outboard.profiles.Profile")
    return profile


def install(choice: Choice, profile: Profile) -> None:
    """Adds the profile's extra API to ``torch.<name>`` and runs its hook; it is in force from now on."""
    global _in_force
    from outboard import device
    from outboard.profiles import aliases

    aliases.name_modules(f"torch.{profile.name}")
    for attribute, value in profile.extra_api.items():
        setattr(device, attribute, value)
    profile.on_activation()
    _in_force = choice


def in_force() -> Choice | None:
    """The profile that this process uses; None if Outboard could not be loaded."""
    return _in_force


def require(name: str, package: str, distribution: str) -> None:
    """What the first lines of a package with an old world's name call: it makes sense under one profile only.

    Raises:
        ImportError: if another profile is in force, saying what to do.
    """
    if _in_force is not None and _in_force.name == name:
        return
    if _in_force is None:
        raise ImportError(f"{package} needs Outboard, which could not be loaded: run `outboard doctor`", name=package)
    current = torch._C._get_privateuse1_backend_name()
    raise ImportError(
        f"{package} is for the device {name!r}, but in this process it is called {current!r} already "
        f"({_in_force.reason}). Set OUTBOARD_PROFILE={name}, or import {package} before torch, or install "
        f"{distribution} as the only package that offers a profile.",
        name=package,
    )


def _offered() -> list[EntryPoint]:
    return list(entry_points(group="outboard.profiles"))


def _undecided(offered: dict[str, EntryPoint]) -> str:
    devices = ", ".join(f"{name!r} of {_distribution(entry)}" for name, entry in sorted(offered.items()))
    return (
        f"Installed packages offer several devices ({devices}), and none is chosen, so the device is called "
        f"{_DEFAULT!r}: set OUTBOARD_PROFILE to the name of one."
    )


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else f"the package of {entry.value}"
