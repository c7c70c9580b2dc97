"""Externalization: specs, matching, patching and restoring."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx import ExternalizeSpec, TorchConverter, get_decomp_table
from coreai_onnx.errors import ExportError, ExternalizationError
from coreai_onnx.export.externalize.modules import Externalization
from tests.support.externalized import agrees, converted, functions, untouched
from tests.support.tolerances import assert_close


class Square(torch.nn.Module):
    """x * x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class Cube(Square):
    """x * x * x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * x


def test_the_first_spec_that_matches_wins_and_subclasses_match() -> None:
    model = torch.nn.Sequential(Square(), Cube())
    x = torch.randn(3)
    program = converted(model, (x,), [ExternalizeSpec(Cube, "cube"), Square])
    assert functions(program) == ["ai.coreai.module::Square", "ai.coreai.user::cube"]
    program = converted(model, (x,), [Square])
    assert functions(program) == ["ai.coreai.module::Square", "ai.coreai.module::Cube"]


def test_a_class_that_matches_nothing_is_a_warning() -> None:
    model = torch.nn.Sequential(Square())
    with pytest.warns(UserWarning, match=r"did not match any submodule: Cube, LayerNorm"):
        program = coreai_onnx.convert(
            model, (torch.randn(3),), externalize_modules=[Square, Cube, torch.nn.LayerNorm]
        )
    assert functions(program) == ["ai.coreai.module::Square"]


def test_modules_that_are_not_called_are_left_out() -> None:
    model = torch.nn.Sequential(Square())
    model[0].inner = Cube()
    program = converted(model, (torch.randn(3),), [Square])
    assert functions(program) == ["ai.coreai.module::Square"]


def test_a_forward_of_the_instance_comes_back() -> None:
    model = torch.nn.Sequential(Square())
    replaced = lambda x: x * 3  # noqa: E731 - an instance attribute, as hooks of other packages set
    model[0].forward = replaced
    program = coreai_onnx.convert(model, (torch.ones(2),), externalize_modules=[Square])
    assert model[0].forward is replaced
    (actual,) = program.run(torch.ones(2), kernels=False)
    assert_close(actual, torch.full((2,), 3.0))


def test_errors_leave_nothing_behind() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    model = torch.nn.Sequential(Square(), Fails())
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    converter = TorchConverter()

    def export(m: torch.nn.Module) -> Any:
        return torch.export.export(m, (torch.randn(3),))

    with pytest.raises(ExportError, match="Your model failed to export"):
        converter.add_pytorch_module(model, export_fn=export, externalize_modules=[Square])
    untouched(model, before)
    with pytest.raises((ExportError, ExternalizationError)):
        converter.add_pytorch_module(model, export_fn=export, externalize_modules=[Square, Fails])
    untouched(model, before)
    with pytest.raises(KeyboardInterrupt):
        converter.add_pytorch_module(model, export_fn=_interrupted, externalize_modules=[Square])
    untouched(model, before)
    assert "(none)" in repr(converter)


def _interrupted(_: torch.nn.Module) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("table", ["none", "default", "ours"])
def test_the_user_may_decompose(table: str) -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(self.norm(x))

    model, x = torch.nn.Sequential(Mixed(), Mixed()).eval(), torch.randn(2, 4)
    tables = {"default": None, "ours": get_decomp_table()}

    def export(m: torch.nn.Module) -> Any:
        program = torch.export.export(m, (x,))
        return program if table == "none" else program.run_decompositions(tables[table])

    converter = TorchConverter()
    converter.add_pytorch_module(model, export_fn=export, externalize_modules=[Mixed])
    program = converter.to_onnx()
    whole = ["ai.coreai.module::Mixed", "ai.coreai::layer_norm", "ai.coreai::silu"]
    assert sorted(functions(program)) == whole
    (actual,) = program.run(x, kernels=False)
    assert_close(actual, model(x).detach())


def test_converting_again_leaks_nothing() -> None:
    model = torch.nn.Sequential(Square(), Cube())
    protos = [converted(model, (torch.randn(3),), [Square]).to_proto() for _ in range(2)]
    assert protos[0].SerializeToString() == protos[1].SerializeToString()


def test_a_table_of_the_users_own_reaches_the_bodies() -> None:
    class Tanh(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(torch.tanh(x))

    def tanh(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    model, x = torch.nn.Sequential(Tanh()), torch.randn(2, 4)

    def export(m: torch.nn.Module) -> Any:
        table = {**get_decomp_table(), torch.ops.aten.tanh.default: tanh}
        return torch.export.export(m, (x,)).run_decompositions(table)

    converter = TorchConverter()
    converter.add_pytorch_module(model, export_fn=export, externalize_modules=[Tanh])
    program = converter.to_onnx()
    assert sorted(functions(program)) == ["ai.coreai.module::Tanh", "ai.coreai::silu"]
    assert_close(program.run(x, kernels=False)[0], torch.nn.functional.silu(x * 0.5))


def test_recurrent_layers_stay_whole_in_bodies() -> None:
    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    dims = {"input": {1: torch.export.Dim("length")}}
    model = torch.nn.Sequential(Reader())
    program = converted(model, (torch.randn(2, 5, 4),), [Reader], dynamic_shapes=dims)
    agrees(program, model, (torch.randn(2, 9, 4),))


def test_a_way_of_calling_has_one_tag() -> None:
    model = torch.nn.Sequential(Square())
    externalization = Externalization(model, [Square])
    x = torch.ones(2)
    with externalization.patched():
        first, second = model(x), model(x + 1)
        model(torch.ones(3)), model(torch.ones(2, dtype=torch.float64))
        assert model[0](x=x).tolist() == first.tolist()
    assert [tag.partition("#")[0] for tag in externalization.calls] == ["0", "0", "0"]
    assert_close(second, torch.full((2,), 4.0))


def test_a_symbolic_float_is_refused() -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor, count: float) -> torch.Tensor:
            return x / count

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = Mean()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mean(x, x.shape[0] / 2)

    dims = {"x": {0: torch.export.Dim("n")}}
    with pytest.raises(ExternalizationError, match=r"symbolic number (?s:.*) pass it as a tensor"):
        coreai_onnx.convert(
            Outer(), (torch.ones(4),), dynamic_shapes=dims, externalize_modules=[Mean]
        )
