"""Names of version 0.1 lead to the modules of today, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from coreai_onnx import _MOVED as MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_present_module(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"import {MOVED[old]}$"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])


def test_a_submodule_is_not_loaded_twice() -> None:
    sys.modules.pop("coreai_onnx.memory.plan", None)
    with pytest.warns(DeprecationWarning, match=r"import coreai_onnx\.runtime\.memory\.plan"):
        module = importlib.import_module("coreai_onnx.memory.plan")
    assert module is importlib.import_module("coreai_onnx.runtime.memory.plan")


def test_other_names_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("coreai_onnx.memories")
