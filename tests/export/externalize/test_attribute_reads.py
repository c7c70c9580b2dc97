"""What a forward read decides whether another module's forward gives the same trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coreai_onnx.export.externalize.attribute_reads import AttributeReads, is_recording, recording

Tensor = torch.Tensor


class Inner(torch.nn.Module):
    """Has a scale of its own."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.ones(2))


class Layer(torch.nn.Module):
    """AttributeReads what a function reads."""

    kind = "layer"

    def __init__(self, read: Callable[[Any], Any], index: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.inner = Inner(scale)
        self.blocks = torch.nn.ModuleList([Inner(scale)])
        self.layer_idx = index
        self.register_buffer("table", torch.zeros(2))
        vars(self)["read"] = read

    def forward(self) -> Any:
        read = type(self).look(self)
        return read(self)

    def look(self) -> Any:
        """Return the function, without a read of it that counts."""
        return object.__getattribute__(self, "read")


def reads_of(module: torch.nn.Module) -> AttributeReads:
    with recording(module) as reads:
        module()
    return reads


INDEX_COUNTS = [
    lambda m: m.layer_idx,
    lambda m: getattr(m, "layer_idx"),  # noqa: B009 - as models do
    lambda m: m.__dict__["layer_idx"],
    lambda m: vars(m).get("layer_idx"),
    lambda m: [m.missing if hasattr(m, "missing") else m.layer_idx],
]
INDEX_DOES_NOT_COUNT = [
    lambda m: m.inner.weight.shape,
    lambda m: m.inner.scale,
    lambda m: m.kind,
    lambda m: m.training,
    lambda m: m.table.sum(),
    lambda m: [b.scale for b in m.blocks],
    lambda m: list(m.parameters()),
    lambda m: m.inner(1) if False else m._modules["inner"].scale,
    lambda m: hasattr(m, "nothing"),
]


@pytest.mark.parametrize("read", INDEX_COUNTS)
def test_what_was_read_must_be_the_same(read: Any) -> None:
    reads = reads_of(Layer(read))
    assert reads.hold_for(Layer(read))
    assert not reads.hold_for(Layer(read, index=1))


@pytest.mark.parametrize("read", INDEX_DOES_NOT_COUNT)
def test_what_was_not_read_may_differ(read: Any) -> None:
    assert reads_of(Layer(read)).hold_for(Layer(read, index=1))


def test_reads_of_inner_modules_count() -> None:
    def scale(m: Any) -> Any:
        return m.inner.scale

    reads = reads_of(Layer(scale))
    assert not reads.hold_for(Layer(scale, scale=2.0))
    assert reads_of(Layer(lambda m: m.inner.weight)).hold_for(Layer(scale, scale=2.0))


def test_what_was_missing_must_be_missing() -> None:
    def read(m: Any) -> Any:
        return getattr(m, "cache", None)

    reads = reads_of(Layer(read))
    other = Layer(read)
    assert reads.hold_for(other)
    other.cache = 3
    assert not reads.hold_for(other)


def test_the_first_value_counts() -> None:
    def count(m: Any) -> Any:
        m.layer_idx += 1
        return m.layer_idx

    reads = reads_of(Layer(count, index=4))
    assert reads.hold_for(Layer(count, index=4))
    assert not reads.hold_for(Layer(count, index=5))


def test_modes_and_hooks_of_inner_modules_are_reads() -> None:
    class Calls(Layer):
        def forward(self) -> Any:
            return self.child(torch.ones(2))

    def make() -> Any:
        module = Calls(lambda m: None)
        module.child = torch.nn.Dropout()
        return module

    reads = reads_of(make())
    assert reads.hold_for(make())
    assert not reads.hold_for(make().eval())
    hooked = make()
    hooked.child.register_forward_hook(lambda *_: None)
    assert not reads.hold_for(hooked)


def test_another_module_in_a_place_is_another_object() -> None:
    outside = [Inner(), Inner()]

    def make(i: int) -> Any:
        module = Layer(lambda m: m.others[0].scale)
        module.others = [outside[i]]
        return module

    reads = reads_of(make(0))
    assert reads.hold_for(make(0))
    assert not reads.hold_for(make(1))


def test_recordings_nest_and_end() -> None:
    outer, inner = Layer(lambda m: m.inner.scale), Layer(lambda m: m.layer_idx)
    before = vars(torch.nn.Module).copy()
    with recording(outer) as first:
        assert is_recording()
        with recording(inner) as second:
            outer()
            inner()
        outer.layer_idx  # noqa: B018 - a read
    assert not is_recording()
    assert vars(torch.nn.Module).keys() == before.keys()
    assert not first.hold_for(Layer(outer.read, index=1))
    assert not second.hold_for(Layer(inner.read, index=1))
    assert second.hold_for(Layer(inner.read, scale=3.0))


def test_a_recording_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        reads_of(Layer(lambda m: 1 / 0))
    assert not is_recording()
    assert "__getattribute__" not in vars(torch.nn.Module)


def test_reads_can_be_repeated_on_a_module_that_did_not_run() -> None:
    """A norm that shares its twin's results was read as well, for the layer around it."""
    inner = Inner()
    with recording(inner) as of_inner:
        inner.scale  # noqa: B018 - a read
    layer = Layer(lambda m: None)
    with recording(layer) as around:
        of_inner.repeat(layer.blocks[0])
    assert around.hold_for(Layer(layer.read))
    changed = Layer(layer.read)
    changed.blocks[0].scale = 2.0
    assert not around.hold_for(changed)


def test_slots_count() -> None:
    class Slotted(torch.nn.Module):
        __slots__ = ("width",)

        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width

        def forward(self) -> int:
            return self.width

    reads = reads_of(Slotted(1))
    assert reads.hold_for(Slotted(1))
    assert not reads.hold_for(Slotted(2))
