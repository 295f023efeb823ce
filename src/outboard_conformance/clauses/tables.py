# SPDX-License-Identifier: Apache-2.0
"""The table itself: version, required functions, optional groups, error texts."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32

from outboard_conformance.bench import Bench, together
from outboard_conformance.clause import clause, expect
from outboard_conformance.driver import ABI_MAJOR, FUNCTIONS, REQUIRED, Status

#: Functions that are there together or not at all.
GROUPS = (
    ("host_alloc", "host_free"),
    ("capture_begin", "capture_end", "graph_launch", "graph_destroy"),
    ("library_find", "library_call"),
    (
        "collective_supported",
        "communicator_id",
        "communicator_create",
        "communicator_destroy",
        "communicator_abort",
        "collective",
    ),
    ("function_load", "function_release"),
)


@clause("contract", "returning a pointer to an immutable `ob_driver` table with static lifetime.")
def the_table_is_one(bench: Bench) -> None:
    driver = bench.driver
    expect(driver.again() == driver.table, "a second call of outboard_driver returned another address")
    expect(bool(driver.head.name), "the driver has no name")


@clause("contract", "Anything else raises OB_ABI_MAJOR, and the runtime refuses the driver.")
def the_version_is_ours(bench: Bench) -> None:
    head = bench.driver.head
    expect(head.abi_major == ABI_MAJOR, f"abi_major is {head.abi_major}; this kit is for {ABI_MAJOR}")


@clause("contract", "`struct_size` is the size of the struct the *driver* was compiled with")
def the_table_has_the_size_it_says(bench: Bench) -> None:
    size = bench.driver.head.struct_size
    least = 24 + 8 * len(REQUIRED)
    expect(size >= least and size % 8 == 0, f"struct_size is {size}; with the required functions it is {least} or more")


@clause("contract", "---- required: devices ----")
def required_functions_are_there(bench: Bench) -> None:
    missing = [name for name in REQUIRED if not bench.driver.has(name)]
    expect(not missing, f"NULL: {', '.join(missing)}")


@clause("contract", "---- optional, all or none: graphs of launches ----")
def optional_groups_are_whole(bench: Bench) -> None:
    for group in GROUPS:
        there = [name for name in group if bench.driver.has(name)]
        expect(len(there) in (0, len(group)), f"of {', '.join(group)} there are only {', '.join(there)}: all or none")
    alone = bench.driver.has("communicator_joined") and not bench.driver.has("communicator_create")
    expect(not alone, "communicator_joined without communicator_create")
    calls = not bench.driver.has("function_load") or bench.driver.has("library_call")
    expect(calls, "function_load without library_call, which runs what it loads")


@clause("contract", "After a status other than OB_OK or OB_NOT_READY, `last_error` gives the text")
def errors_have_a_text(bench: Bench) -> None:
    open_nothing(bench)
    expect(bool(bench.driver.error()), "last_error is empty after device_open failed")


@clause("contract", "`last_error` gives the text for the calling thread, valid until that thread's next call.")
def errors_belong_to_their_thread(bench: Bench) -> None:
    open_nothing(bench)
    mine = bench.driver.value("last_error")

    def others(number: int) -> None:
        stream = ctypes.c_void_p()
        bench.driver.call("stream_create", bench.device, ctypes.byref(stream))
        bench.driver.call("stream_destroy", stream)
        bench.count()

    together(others, 2)
    expect(bench.driver.value("last_error") == mine, "calls on other threads changed this thread's last_error")


@clause("contract", "Opening the same index again returns the same handle.")
def a_device_has_one_handle(bench: Bench) -> None:
    expect(bench.open(0).value == bench.device.value, "the second device_open(0) returned another handle")


@clause("contract", "a handle, size or name the driver does not accept")
def devices_that_do_not_exist_are_refused(bench: Bench) -> None:
    status = open_nothing(bench)
    expect(status == Status.INVALID_ARGUMENT, f"device_open of a device that does not exist returned {status.name}")


@clause("contract", "Number of usable devices.")
def the_number_of_devices_stays(bench: Bench) -> None:
    counts = {bench.count() for _ in range(3)}
    expect(len(counts) == 1 and min(counts) >= 1, f"device_count said {sorted(counts)}")


@clause("contract", "Every call returns an `ob_status`.")
def optional_functions_lie_within_the_table(bench: Bench) -> None:
    last = [i for i, name in enumerate(FUNCTIONS) if bench.driver.has(name)][-1]
    expect(24 + 8 * (last + 1) <= bench.driver.head.struct_size, "a function lies beyond struct_size")


def open_nothing(bench: Bench) -> Status:
    """The status of opening a device that does not exist. Raises Broken if that works."""
    device = ctypes.c_void_p()
    status = int(bench.driver.value("device_open", c_uint32(1_000_000), ctypes.byref(device)))
    expect(status != Status.OK, "device_open(1000000) returned OB_OK")
    return Status(status)
