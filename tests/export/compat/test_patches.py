"""A name is replaced for one thread, and given back as other libraries left it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from coreai_onnx.export.compat.patches import exchanged, patched

Function = Callable[..., Any]


class Base:
    """Has a method that a class inherits."""

    def speak(self, word: str) -> str:
        """Return the word."""
        return word


class Owner(Base):
    """Has a method of its own, too."""

    def shout(self, word: str) -> str:
        """Return the word, louder."""
        return word.upper()


@pytest.fixture(autouse=True)
def _owner_as_before() -> Any:
    before = vars(Owner)["shout"]
    yield
    assert vars(Owner)["shout"] is before
    assert "speak" not in vars(Owner)


def marked(mark: str) -> Callable[[Function], Function]:
    """Return what replaces a function by one that puts a mark behind its result."""

    def wrap(original: Function) -> Function:
        def replacement(*args: Any) -> Any:
            return original(*args) + mark

        return replacement

    return wrap


@pytest.mark.parametrize("name", ["speak", "shout"])
def test_a_method_is_replaced_and_given_back(name: str) -> None:
    owner = Owner()
    plain = getattr(owner, name)("a")
    with patched(Owner, name, marked("!")):
        assert getattr(owner, name)("a") == plain + "!"
        assert Base().speak("a") == "a"
    assert getattr(owner, name)("a") == plain


def test_an_object_and_a_dictionary_have_names_too() -> None:
    owner, registry = Owner(), {"function": str.upper}
    with patched(owner, "shout", marked("!")), patched(registry, "function", marked("?")):
        assert owner.shout("a") == "A!"
        assert Owner().shout("a") == "A"
        assert registry["function"]("a") == "A?"
    assert not vars(owner)
    assert registry == {"function": str.upper}


def test_patches_nest() -> None:
    with patched(Owner, "shout", marked("1")):
        with patched(Owner, "shout", marked("2")):
            assert Owner().shout("a") == "A12"
        assert Owner().shout("a") == "A1"


def test_an_error_inside_gives_all_back() -> None:
    def broken(_: Function) -> Function:
        raise KeyError("wrap")

    with pytest.raises(ZeroDivisionError), patched(Owner, "shout", marked("!")):
        _ = 1 // 0
    with pytest.raises(KeyError), patched(Owner, "shout", broken):
        pass
    assert Owner().shout("a") == "A"


def test_other_threads_call_the_original() -> None:
    with ThreadPoolExecutor(1) as pool, patched(Owner, "shout", marked("!")):
        assert Owner().shout("a") == "A!"
        assert pool.submit(Owner().shout, "a").result() == "A"


def test_another_library_that_patched_before() -> None:
    before = Owner.shout
    theirs = marked(" theirs")(before)
    Owner.shout = theirs  # type: ignore[method-assign]
    try:
        with patched(Owner, "shout", marked(" ours")):
            assert Owner().shout("a") == "A theirs ours"
        assert Owner.shout is theirs
    finally:
        Owner.shout = before  # type: ignore[method-assign]


@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "functools.wraps"])
def test_another_library_that_patches_inside_and_stays(wraps: bool) -> None:
    before = Owner.shout
    with patched(Owner, "shout", marked(" ours")):
        ours = Owner.shout
        theirs = marked(" theirs")(ours)
        Owner.shout = functools.wraps(ours)(theirs) if wraps else theirs  # type: ignore[method-assign]
        assert Owner().shout("a") == "A ours theirs"
    assert Owner().shout("a") == "A theirs"
    assert Owner.shout is theirs
    with patched(Owner, "shout", marked(" again")):
        assert Owner().shout("a") == "A theirs again"
    assert Owner.shout is theirs
    Owner.shout = ours  # type: ignore[method-assign]  # they restore what they found
    assert Owner().shout("a") == "A"
    with patched(Owner, "shout", marked(" once more")):
        assert Owner().shout("a") == "A once more"
    assert Owner.shout is before


def test_another_library_that_restores_inside() -> None:
    before = Owner.shout
    Owner.shout = marked(" theirs")(before)  # type: ignore[method-assign]
    with patched(Owner, "shout", marked(" ours")):
        Owner.shout = before  # type: ignore[method-assign]
        with patched(Owner, "shout", marked(" inner")):
            assert Owner().shout("a") == "A inner"
    assert Owner.shout is before


def test_reads_of_modules_by_another_library_survive() -> None:
    seen: list[str] = []

    def theirs(self: torch.nn.Module, name: str) -> Any:
        seen.append(name)
        return object.__getattribute__(self, name)

    torch.nn.Module.__getattribute__ = theirs  # type: ignore[method-assign,assignment]
    try:
        noted: list[str] = []

        def wrap(original: Function) -> Function:
            def read(self: torch.nn.Module, name: str) -> Any:
                noted.append(name)
                return original(self, name)

            return read

        with patched(torch.nn.Module, "__getattribute__", wrap):
            assert torch.nn.Linear(2, 3).in_features == 2
        assert "in_features" in noted
        assert "in_features" in seen
        assert vars(torch.nn.Module)["__getattribute__"] is theirs
    finally:
        del torch.nn.Module.__getattribute__


def test_an_exchanged_value_is_given_back_unless_another_is_on_top() -> None:
    registry: dict[str, Any] = {"a": 1}
    with exchanged(registry, "a", 2), exchanged(registry, "b", 3):
        assert registry == {"a": 2, "b": 3}
    assert registry == {"a": 1}
    with exchanged(registry, "a", 2):
        registry["a"] = 4
    assert registry == {"a": 4}


def test_two_threads_take_turns() -> None:
    inside = threading.Event()
    order: list[str] = []

    def second() -> None:
        inside.wait()
        with patched(Owner, "shout", marked("2")):
            order.append(Owner().shout("b"))

    thread = threading.Thread(target=second)
    thread.start()
    with patched(Owner, "shout", marked("1")):
        inside.set()
        thread.join(0.2)
        order.append(Owner().shout("a"))
    thread.join()
    assert order == ["A1", "B2"]
