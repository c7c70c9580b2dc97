"""Execution providers in tests, on a machine that has the CPU only."""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime as ort
import pytest

from coreai_onnx.runtime.libraries.providers import add_providers
from coreai_onnx.runtime.sessions import opening
from coreai_onnx.targets.providers import CPU, Choice

IDLE = "AzureExecutionProvider"
"""A provider of every onnxruntime for Linux, which takes no node: what runs, runs on the CPU."""
WITHOUT_ARENA: Choice = ("cpu", {"use_arena": False})
"""The CPU with an option, which no session has by default."""


def count_without_arena(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Return a list that gets an item for each session on `WITHOUT_ARENA` from now on."""
    sessions = []

    def add(options: ort.SessionOptions, providers: Mapping[str, Mapping[str, str]]) -> None:
        if providers == {CPU: {"use_arena": "0"}}:
            sessions.append(providers[CPU])
        add_providers(options, providers)

    monkeypatch.setattr(opening, "add_providers", add)
    return sessions
