# SPDX-License-Identifier: Apache-2.0
"""What of PyTorch is replaced: one table, which this PyTorch fits, and nothing beside it."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outboard
from outboard import patches

PLACES = [place for places in patches.needed(torch.__version__).values() for place in places]
#: An attention is taken apart with another function in this place for the time of the call.
FOR_A_CALL = "torch.nn.attention.flex_attention._vmap_for_bhqkv"


@pytest.mark.parametrize("place", PLACES, ids=[place.where for place in PLACES])
def test_this_pytorch_has_what_the_table_says(place: patches.Place) -> None:
    assert patches.mismatch(place) == ""


def test_a_compiled_program_replaces_all_of_it(run_python: Callable[..., str], tmp_path: Path) -> None:
    printed = run_python(
        """
        import inspect
        import types

        import torch
        import torch.nested._internal.ops
        from torch.distributed import fsdp, rpc
        from torch.nn.attention.flex_attention import flex_attention
        from outboard import patches

        name = torch._C._get_privateuse1_backend_name()
        model = torch.nn.Linear(4, 4).to(name)
        torch.compile(model)(torch.ones(2, 4, device=name)).sum().backward()
        places = {place.where for places in patches.needed(torch.__version__).values() for place in places}
        print(*sorted(places - patches.replaced), patches.refused)

        # Whoever calls what was there may name every argument that has a name, or none.
        kinds = inspect.Parameter
        for where in patches.replaced:
            owner, name = patches._owner(where)
            found = getattr(owner, name)
            wrapped = inspect.unwrap(found)
            if not isinstance(wrapped, types.FunctionType):
                continue  # a number, or a function of C's
            taken = inspect.signature(found, follow_wrapped=False)
            given = inspect.signature(wrapped).parameters.values()
            first = [each.name for each in given if each.kind is kinds.POSITIONAL_ONLY]
            either = [each.name for each in given if each.kind is kinds.POSITIONAL_OR_KEYWORD]
            named = [each.name for each in given if each.kind is kinds.KEYWORD_ONLY]
            try:
                taken.bind(*first, *either, **dict.fromkeys(named))
                taken.bind(*first, **dict.fromkeys([*either, *named]))
            except TypeError as error:
                print(where, taken, error)
        """,
        cold=True,
        OUTBOARD_CACHE_DIR=str(tmp_path),  # where no trace is, one is made
    )
    assert printed.split() == [FOR_A_CALL, "{}"]


def test_nothing_else_is_replaced() -> None:
    """No module assigns to attributes of what it has from PyTorch; those of libraries' adapters are no part of it."""
    root = Path(outboard.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] == "integrations":
            continue
        text = path.read_text()
        lines = re.findall(r"^\s*from torch\S* import ([^(\n]+)$", text, re.M)
        names = {each.split(" as ")[-1].strip() for line in lines for each in line.split(",")} | {"torch", "module"}
        for owner, attribute in re.findall(r"^\s+([\w.]+)\.(\w+) = ", text, re.M):
            if owner.split(".")[0] in names:
                found.add(f"{path.name}: {owner}.{attribute}")
    # The second and the third are what is called ``module`` there: a graph, and any module that is imported.
    assert found == {
        "flex_attention.py: module._vmap_for_bhqkv",
        "graphs.py: module.forward",
        "on_import.py: module.__spec__.loader",
    }


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module with a function and a class, and a table of two features for them."""
    made = types.ModuleType("a_library")

    def function(first: int, *others: int, **options: int) -> int:
        return first

    class Thing:
        @staticmethod
        def made(size: int) -> int:
            return size

    made.function, made.Thing = function, Thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_library", made)
    table = {
        "it works": (
            patches.Place("a_library.function", "first *others **options"),
            patches.Place("a_library:Thing.made", "size"),
        ),
        "it is off": (patches.Place("a_library.function", "second"), patches.Place("a_library.absent", None)),
    }
    monkeypatch.setattr(patches, "TABLE", table)
    monkeypatch.setattr(patches, "replaced", set())
    monkeypatch.setattr(patches, "refused", {})
    yield made


def _double(original: Callable[..., int]) -> Callable[..., int]:
    return lambda *args: 2 * original(*args)


def test_functions_and_static_methods(library: Any) -> None:
    assert patches.apply("it works", {"a_library.function": _double, "a_library:Thing.made": _double})
    assert library.function(3) == 6
    assert library.Thing.made(4) == library.Thing().made(4) == 8
    assert patches.replaced == {"a_library.function", "a_library:Thing.made"}


def test_what_does_not_fit_stays_and_is_said_once(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = library.function
    for _ in range(2):
        assert not patches.apply("it is off", {"a_library.function": _double})
    assert library.function is before and not patches.replaced
    (record,) = caplog.records
    assert "not so that it is off" in record.message
    assert "a_library.function takes first *others **options" in record.message
    assert "there is no a_library.absent" in record.message


def test_what_pytorch_does_by_itself_is_left_to_it(
    library: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "BUILT_IN_SINCE", {"it works": torch.__version__, "it is off": "99.0"})
    before = library.function
    assert not patches.apply("it works", {"a_library.function": _double})
    assert library.function is before and not patches.refused and not caplog.records
    assert list(patches.needed(torch.__version__)) == ["it is off"]
    assert list(patches.needed("2.0.0")) == ["it works", "it is off"]


def test_places_outside_of_the_table_are_refused(library: Any) -> None:
    with pytest.raises(KeyError):
        patches.apply("nobody knows this", {})
    with pytest.raises(ValueError, match=r"a_library\.other"):
        patches.apply("it works", {"a_library.other": _double})
