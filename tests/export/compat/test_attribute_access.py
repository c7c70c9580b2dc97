"""Reads of modules, and who reads."""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.export.compat.attribute_access import access_reported

Seen = list[tuple[str, str]]


class Owner(torch.nn.Module):
    """Has an attribute, reads it, and looks into its own ``__dict__``."""

    size = 3

    def __init__(self) -> None:
        super().__init__()
        self.index = 1

    def forward(self) -> Any:
        return self.index, self.__dict__["index"], self.size


def noted(read: Any) -> Seen:
    seen: Seen = []

    def report(module: torch.nn.Module, own: dict[str, Any], name: str) -> None:
        assert own is object.__getattribute__(module, "__dict__")
        seen.append((type(module).__name__, name))

    with access_reported(report):
        read()
    return seen


def test_reads_are_noted_with_their_module() -> None:
    owner = Owner()
    assert noted(owner.forward) == [
        ("Owner", "index"),
        ("Owner", "__dict__"),
        ("Owner", "size"),
    ]
    assert "__getattribute__" not in vars(torch.nn.Module)


def test_torch_itself_may_look_into_dict() -> None:
    owner = Owner()
    assert ("Owner", "__dict__") not in noted(lambda: list(owner.named_modules()))


def test_what_is_missing_is_missing_all_the_same() -> None:
    owner = Owner()
    assert noted(lambda: getattr(owner, "nothing", None)) == [("Owner", "nothing")]
