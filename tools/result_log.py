# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that loses no result, however processes end: each is written as soon as it is known.

    python -m pytest -n 2 -p tools.result_log --result-log FILE tests

Each line of the file is a word and the name of a test: ``collected`` for each that is to run, then how a phase of it
ended, ``passed``, ``failed`` or ``skipped``. A test in which its process died has failed, as has a file that cannot be
imported; the tests after it run in another process.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class _Scheduling(LoadFileScheduling):
    """Of whole files. What pytest-xdist 3.8 has gives a test in which a process died to the next one, again and again,
    and work to processes that do not know the tests yet."""

    def remove_node(self, node: WorkerController) -> str | None:
        files = self.assigned_work.pop(node)
        waiting = [(tests, name) for tests in files.values() for name, is_done in tests.items() if not is_done]
        if not waiting:
            return None
        tests, crashed = waiting[0]
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for other in self.registered_collections.keys() & self.assigned_work.keys():
            self._reschedule(other)
        return crashed


class _ResultLog:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._collected = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._collected:
            self._file.writelines(f"collected {name}\n" for name in ids)
        self._collected = True

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> _Scheduling:
        return _Scheduling(config, log)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._file.write(f"failed {report.nodeid}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._file.write(f"{report.outcome} {report.nodeid}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--result-log", type=Path, required=True, help="file for the results")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # processes that run tests report to the one that started them
        config.pluginmanager.register(_ResultLog(config.option.result_log))
