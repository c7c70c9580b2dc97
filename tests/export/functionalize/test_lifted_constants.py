"""Tensors in plain attributes that a forward changes are state."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.errors import ExportError
from coreai_onnx.export.functionalize.lifted_constants import lifted_constants
from tests.support.tolerances import assert_close

Tensor = torch.Tensor
X = torch.tensor([[1.0, 2.0, 3.0]])


class Cache:
    """What a module may hold without telling torch."""

    def __init__(self) -> None:
        self.keys = torch.arange(12.0).reshape(4, 3)
        self.length = torch.tensor(0)


class Plain(torch.nn.Module):
    """Writes by position into a cache object; the position is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()

    def forward(self, x: Tensor) -> Tensor:
        length = self.cache.length.to(torch.int64)
        self.cache.keys.index_copy_(0, length[None], x)
        self.cache.length.add_(1)
        return self.cache.keys * 2 + length


class Registered(Plain):
    """The cache's tensors are buffers as well; both names are read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", self.cache.keys)
        self.register_buffer("length", self.cache.length, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.get_buffer("keys") + self.get_buffer("length")


class Twice(Plain):
    """A tensor with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.cache.keys

    def forward(self, x: Tensor) -> Tensor:
        self.again[1:2].add_(x)
        return super().forward(x) + self.again


class Views(Plain):
    """Writes through views."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.cache.keys.sum()
        self.cache.keys.view(12)[3:6].copy_(x.view(3))
        self.cache.keys.t()[0].mul_(2)
        return self.cache.keys.reshape(12) + before


class Scratch(Plain):
    """Writes over a tensor before it reads it: nothing is kept."""

    def forward(self, x: Tensor) -> Tensor:
        self.cache.keys.copy_(x.expand(4, 3))
        return self.cache.keys + 1


class Overlapping(Plain):
    """A view of a tensor in another attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.row = self.cache.keys[1]

    def forward(self, x: Tensor) -> Tensor:
        self.cache.keys.add_(x)
        return self.row * 2


STATES = {
    Plain: {"cache.keys", "cache.length"},
    Registered: {"keys", "length"},
    Twice: {"cache.keys", "cache.length"},
    Views: {"cache.keys"},
    Scratch: set(),
}


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", STATES)
def test_what_is_changed_goes_on_from_call_to_call(kind: type[Plain], strict: bool) -> None:
    module, eager = kind(), kind()
    converter = TorchConverter()
    converter.add_pytorch_module(
        module, export_fn=lambda m: torch.export.export(m, (X,), strict=strict)
    )
    session = coreai_onnx.session(converter.to_onnx().optimize(), kernels=False)
    assert set(session.states) == STATES[kind]
    for step in range(3):
        assert_close(session.run(X + step)[0], eager(X + step))
    session.reset()
    assert_close(session.run(X)[0], kind()(X))
    assert_close(module.cache.keys, Cache().keys)


def test_a_view_of_a_changed_tensor_is_refused() -> None:
    exported = torch.export.export(Overlapping(), (X,))
    with pytest.raises(ExportError, match="forward changes lifted_tensor_0, row"):
        TorchConverter().add_exported_program(exported)


def test_constants_that_are_buffers_are_found() -> None:
    found = lifted_constants(torch.export.export(Registered(), (X,)))
    assert sorted(found.twins.values()) == ["b_keys", "b_length"]
    assert set(found.tensors) == set(found.twins)
    assert not found.overlaps
    assert list(lifted_constants(torch.export.export(Overlapping(), (X,))).overlaps) == ["c_row"]
