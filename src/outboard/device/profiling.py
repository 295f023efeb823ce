# SPDX-License-Identifier: Apache-2.0
"""The names by which ``torch.profiler`` sorts and shows a device's times: ``ocl_time_total`` as ``cuda_time_total``.

(``csrc/torch/bridge/profiler.cpp`` gives the profiler what it shows.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import profiler_util

from outboard import patches

_QUANTITIES = ("{}_time", "{}_time_total", "self_{}_time_total", "{}_memory_usage", "self_{}_memory_usage")


def install(name: str) -> None:
    """Gives the profiler's events the quantities of a device under its own name, for ``table(sort_by=...)`` too, and
    ``export_stacks`` the metric ``self_<name>_time_total``."""
    for owner in (profiler_util.FunctionEvent, profiler_util.FunctionEventAvg):
        for quantity in _QUANTITIES:
            own, known = quantity.format(name), quantity.format("device")
            if not hasattr(owner, own):
                setattr(owner, own, _alias(known))
    _offer_metric(f"self_{name}_time_total")


def _alias(known: str) -> property:
    return property(lambda event: getattr(event, known), doc=f"The event's ``{known}``.")


def _offer_metric(metric: str) -> None:
    def offering(known: Callable[..., list[str]]) -> Callable[..., list[str]]:
        return lambda self: [*known(self), metric]

    place = "torch.autograd.profiler_util:EventList.supported_export_stacks_metrics"
    patches.apply("export_stacks of the profiler knows the device's time", {place: offering})
