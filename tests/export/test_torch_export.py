"""torch.export with all its arguments, and dims that are given by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental import _config

from coreai_onnx import compare, convert
from coreai_onnx.errors import DynamicShapesError
from coreai_onnx.export.torch_export import (
    TorchExport,
    dims_in,
    size_oblivious,
    with_named_dims,
)

X = torch.randn(3, 4)


class Pair(NamedTuple):
    """Two tensors, as a forward may take them."""

    first: Any
    second: Any


def names(spec: Any) -> Any:
    """Return a spec with names in the place of dims."""
    if isinstance(spec, dict):
        return {key: names(value) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [names(value) for value in spec]
    return spec.__name__ if isinstance(spec, Dim) else spec


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"ids": {0: "batch", 1: "seq"}, "mask": None},
        ({0: "batch"}, [{1: "batch"}, ("a", None)]),
        [Pair({0: "a"}, {0: "b"})],
    ],
)
def test_names_become_dims(spec: Any) -> None:
    made = with_named_dims(spec)
    assert names(made) == names(spec)
    assert all(dim is None or isinstance(dim, Dim) for dim in dims_in(made))


def test_one_name_is_one_dim() -> None:
    own = Dim("batch", min=2, max=9)
    made = with_named_dims({"x": {0: "batch", 1: "n"}, "y": {0: own, 1: "n"}, "z": {0: Dim.AUTO}})
    assert made["x"][0] is own
    assert made["x"][1] is made["y"][1]
    assert made["z"] == {0: Dim.AUTO}


def test_a_name_is_an_identifier() -> None:
    with pytest.raises(DynamicShapesError, match="'batch size' cannot name a dim"):
        convert(torch.nn.ReLU(), X, dynamic_shapes=({0: "batch size"},))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
def test_options_of_an_export(strict: bool, deferred: bool) -> None:
    module = torch.nn.Linear(4, 2)
    program = convert(
        module,
        X,
        dynamic_shapes={"input": {0: "rows"}},
        strict=strict,
        prefer_deferred_runtime_asserts_over_guards=deferred,
    )
    assert str(program.model.graph.inputs[0].shape[0]) == "rows"
    compare(program, module, (torch.randn(7, 4),)).assert_close()


def test_options_reach_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def export(model: Any, args: Any, kwargs: Any, **options: Any) -> None:
        cached = FakeTensorMode().cache_enabled
        seen.update(options, oblivious=_config.backed_size_oblivious, cached=cached)

    monkeypatch.setattr(torch.export, "export", export)
    TorchExport((X,), strict=True, deferred=True, oblivious=True, cached=False)(torch.nn.ReLU())
    assert seen == {
        "dynamic_shapes": None,
        "strict": True,
        "prefer_deferred_runtime_asserts_over_guards": True,
        "oblivious": True,
        "cached": False,
    }
    assert not _config.backed_size_oblivious
    assert FakeTensorMode().cache_enabled


def test_sizes_are_oblivious_for_a_time() -> None:
    with size_oblivious(when=False):
        assert not _config.backed_size_oblivious
    with size_oblivious():
        assert _config.backed_size_oblivious


def test_data_is_detached() -> None:
    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.data.sum() + x.data[0]

    program = TorchExport((X,), detached=True)(Reads())
    other = torch.randn(3, 4)
    torch.testing.assert_close(program.module()(other), Reads()(other))
