# SPDX-License-Identifier: Apache-2.0
"""The process in which clauses meet the driver.

It reads what to do from its input, a line of JSON, and writes a line before each clause and one after it, so that the
runner knows which clause it was when the process ends early.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import traceback
from typing import Any

from outboard_conformance import clauses  # noqa: F401 - registers the clauses
from outboard_conformance.bench import Bench, Language
from outboard_conformance.clause import CLAUSES, Broken, Clause, NotApplicable
from outboard_conformance.driver import Driver, Failed


def main() -> None:
    """Runs the clauses that the runner asks for."""
    # What drivers print to standard output is not for the runner.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    asked = json.loads(sys.stdin.readline())
    language = Language(asked["dialect"], asked["words"])
    executables = [each | {"code": base64.b64decode(each["code"])} for each in asked["executables"]]
    try:
        bench = Bench(Driver(asked["driver"]), language, executables)
    except (OSError, AttributeError, TypeError, Failed) as error:
        say(broken=f"{type(error).__name__}: {error}")
        return
    say(device={name: _plain(getattr(bench.properties, name)) for name, *_ in bench.properties._fields_})
    for name in asked["clauses"]:
        say(begins=name)
        start = time.perf_counter()
        outcome, text = tried(bench, CLAUSES[name])
        say(ends=name, outcome=outcome, text=text, seconds=round(time.perf_counter() - start, 3))
        if outcome == "broken":
            # What the clause left behind may still run: nothing is given back, and the next clause has a new process.
            os._exit(0)


def tried(bench: Bench, clause: Clause) -> tuple[str, str]:
    """The outcome of a clause ("kept", "broken" or "not applicable") and what there is to say about it."""
    outcome, text = "kept", ""
    try:
        text = clause.run(bench) or ""
    except NotApplicable as error:
        outcome, text = "not applicable", str(error)
    except (Broken, Failed) as error:
        outcome, text = "broken", str(error)
    except Exception:  # noqa: BLE001 - a fault of the kit or of the driver's answers: shown whole, not lost
        outcome, text = "broken", traceback.format_exc()
    if outcome == "broken":
        return outcome, text
    try:
        bench.close()
    except Failed as error:
        outcome, text = "broken", f"giving everything back: {error}"
    return outcome, text


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
