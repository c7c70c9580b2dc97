"""The lines of the model behind guards that operators raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coreai_onnx.export.compat.source_lines import user_lines
from coreai_onnx.export.guards import fixed_dims, shape_env
from tests.export.sizes import line_of


class Views(torch.nn.Module):
    """The size of x is fixed inside an operator, that of y by the model itself."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if y.shape[0] == 5:
            y = y + 1
        return x.view(3, 4), y


ARGS = (torch.randn(3, 4), torch.randn(5))
AUTO = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}


def exported(*, strict: bool = False) -> Any:
    return torch.export.export(Views(), ARGS, dynamic_shapes=AUTO, strict=strict)


def places(program: Any) -> dict[str, str]:
    names = [str(n) for n in program.graph_signature.user_inputs]
    found = fixed_dims(shape_env(program), names)
    assert [(f.axis, f.value) for f in found] == [(0, 3), (0, 5)]
    return {f.source: f.where.line if f.where else "" for f in found}


def test_torch_knows_the_lines_of_the_model_only() -> None:
    found = places(exported())
    assert found["x"] == ""
    assert found["y"] == line_of(Views, "if y.shape[0] == 5:")


@pytest.mark.parametrize("strict", [False, True])
def test_user_lines_look_behind_operators(strict: bool) -> None:
    with user_lines() as environments:
        program = exported(strict=strict)
    found = places(program)
    for name, code in (("x", "return x.view(3, 4), y"), ("y", "if y.shape[0] == 5:")):
        place, _, line = line_of(Views, code).partition("   ")
        said, _, code_said = found[name].partition("   ")
        assert said
        assert place.endswith(said)  # dynamo shortens the path of the file
        assert strict or code_said == line
    assert any(env is shape_env(program) for env in environments)


def test_torch_is_as_it_was_afterwards() -> None:
    before = ShapeEnv._get_sloc
    with user_lines():
        assert ShapeEnv._get_sloc is not before
    with pytest.raises(KeyError), user_lines():
        raise KeyError
    assert ShapeEnv._get_sloc is before


def test_a_torch_without_the_method_exports_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coreai_onnx.export.compat.source_lines._LOCATES", "_a_method_of_another_torch"
    )
    with user_lines() as environments:
        found = places(exported())
    assert found["x"] == ""
    assert not environments
