"""The two-step flow: patch, an export of the user's own, sub-export and restore, convert."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import onnx
import pytest
import torch

import coreai_onnx
from coreai_onnx import (
    ExternalizeSpec,
    TorchConverter,
    patch_for_externalization,
    restore_externalization,
    subexport_and_restore,
)
from coreai_onnx.errors import ExternalizationError, StagingError
from coreai_onnx.export.externalize.module_call import _CALLS
from tests.support.externalized import calls, functions, untouched
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


class Inner(torch.nn.Module):
    """tanh of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Block(torch.nn.Module):
    """Two inner modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def two_blocks() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block()).eval()


def export(model: torch.nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (x,))


def test_patch_export_restore_convert() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    expected = model(x).detach()
    patch_for_externalization(model, [Block, ExternalizeSpec(Inner, "inner")])
    exported = export(model, x)
    externalized = subexport_and_restore(model, exported)
    untouched(model, before)
    program = TorchConverter().add_exported_program(exported, externalized=externalized).to_onnx()
    program.optimize()
    onnx.checker.check_model(program.to_proto(), full_check=True)
    assert sorted(functions(program)) == ["ai.coreai.module::Block", "ai.coreai.user::inner"]
    assert_close(program.run(x, kernels=False)[0], expected)


def test_the_peers_names_and_keyword() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    coreai_onnx._patch_model_for_externalization(model, [Block])
    exported = export(model, x)
    externalized = coreai_onnx._subexport_and_restore(model, exported, progress_bar=list)
    converter = TorchConverter()
    converter.add_exported_program(exported, _externalized_exported_programs=externalized)
    assert functions(converter.to_onnx()) == ["ai.coreai.module::Block"]
    assert coreai_onnx._subexport_and_restore(model, exported) == []


def test_the_users_pipeline_may_change_the_program() -> None:
    """Export, rewrite what is outside, calibrate on data, export again, decompose."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Block(), torch.nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    patch_for_externalization(model, [Block])
    captured = export(model, x).module()
    for node in list(captured.graph.nodes):  # a quantizer's kind of rewrite
        if node.target is torch.ops.aten.linear.default:
            with captured.graph.inserting_after(node):
                rounded = captured.graph.call_function(torch.ops.aten.round.default, (node,))
            node.replace_all_uses_with(rounded, delete_user_cb=lambda n, r=rounded: n is not r)
    captured.recompile()
    with torch.no_grad():
        expected = captured(x)  # calibration runs the op for real
    exported = torch.export.export(captured, (x,)).run_decompositions()
    externalized = subexport_and_restore(model, exported)
    program = TorchConverter().add_exported_program(exported, externalized=externalized).to_onnx()
    assert functions(program) == ["ai.coreai.module::Block"]
    assert_close(program.run(x, kernels=False)[0], expected)


def test_weights_that_the_pipeline_lost_are_stored_anew() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    expected = model(x).detach()
    patch_for_externalization(model, [Block])
    captured = export(model, x).module()
    captured.graph.eliminate_dead_code()
    captured.delete_all_unused_submodules()
    assert not dict(captured.named_parameters())
    exported = torch.export.export(captured, (x,))
    externalized = subexport_and_restore(model, exported)
    program = TorchConverter().add_exported_program(exported, externalized=externalized).to_onnx()
    weights = set(program.model.graph.initializers)
    assert weights == {name for name, _ in model.named_parameters()}
    assert_close(program.run(x, kernels=False)[0], expected)


def test_state_in_two_steps() -> None:
    class Total(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return self.total * 2

    model, x = torch.nn.Sequential(Total()), torch.arange(3.0)
    patch_for_externalization(model, [Total])
    exported = export(model, x)
    externalized = subexport_and_restore(model, exported)
    program = TorchConverter().add_exported_program(exported, externalized=externalized).to_onnx()
    session = coreai_onnx.session(program, kernels=False)
    assert_close(session.run(x)[0], (1 + x) * 2)
    assert_close(session.run(x)[0], (1 + 2 * x) * 2)


def test_a_table_for_the_modules_own_programs() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    patch_for_externalization(model, [Inner])
    exported = export(model, x)
    table = {torch.ops.aten.tanh.default: lambda x: x * 0}
    externalized = subexport_and_restore(model, exported, decompositions=table)
    program = TorchConverter().add_exported_program(exported, externalized=externalized).to_onnx()
    assert not calls(program, "Tanh")
    assert_close(program.run(x, kernels=False)[0], x)


def test_patching_twice_is_an_error() -> None:
    model = two_blocks()
    patch_for_externalization(model, [Block])
    with pytest.raises(ExternalizationError, match="already marked"):
        patch_for_externalization(model, [Inner])
    with pytest.raises(ExternalizationError, match=r"0 \(Block\) is already marked"):
        patch_for_externalization(torch.nn.Sequential(*model), [Block])
    restore_externalization(model)
    restore_externalization(model)
    patch_for_externalization(model, [Inner])
    restore_externalization(model)


def test_two_models_at_the_same_time() -> None:
    models, x = [two_blocks(), torch.nn.Sequential(Inner()).eval()], torch.randn(2, 4)
    for model, target in zip(models, (Block, Inner), strict=True):
        patch_for_externalization(model, [target])
    exported = [export(model, x) for model in models]
    parts = [subexport_and_restore(m, p) for m, p in zip(models, exported, strict=True)]
    converter = TorchConverter()
    for name, program, part in zip(("a", "b"), exported, parts, strict=True):
        converter.add_exported_program(program, entrypoint_name=name, externalized=part)
    converted = converter.to_onnx()
    for name, model in zip(("a", "b"), models, strict=True):
        (actual,) = converted.run(x, entrypoint=name, kernels=False)
        assert_close(actual, model(x).detach())


def test_calls_that_are_not_given_are_an_error() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    patch_for_externalization(model, [Block])
    exported = export(model, x)
    restore_externalization(model)
    with pytest.raises(StagingError, match=r"modules \(0, 1\) that are not given"):
        TorchConverter().add_exported_program(exported)


def test_modules_that_the_program_does_not_call_are_a_warning() -> None:
    model, x = two_blocks(), torch.randn(2, 4)
    patch_for_externalization(model, [Block])
    exported = export(model[0], x)
    with pytest.warns(
        UserWarning, match="No call sites found for externalized submodule '1'"
    ) as warned:
        externalized = subexport_and_restore(model, exported)
    assert [call.path for call in externalized] == ["0"]
    assert [w.filename for w in warned] == [__file__]


def test_an_error_in_the_second_step_restores_the_model() -> None:
    class Once(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if type(self).done and torch.compiler.is_exporting():
                raise RuntimeError("not twice")
            type(self).done = True
            return x + 1

    Once.done = False  # type: ignore[attr-defined]
    model, x = torch.nn.Sequential(Once()), torch.randn(3)
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    patch_for_externalization(model, [Once])
    exported = export(model, x)
    with pytest.raises(ExternalizationError, match="failed to export by itself: not twice"):
        subexport_and_restore(model, exported)
    untouched(model, before)


@pytest.mark.parametrize("target", ["Block", ["Block"], [Block()], [int], Block])
def test_targets_are_module_classes(target: Any) -> None:
    model = two_blocks()
    with pytest.raises(TypeError, match=r"module class|not a subclass of torch\.nn\.Module"):
        patch_for_externalization(model, target)
    restore_externalization(model)


@pytest.mark.slow
def test_repeated_conversions_keep_nothing_alive() -> None:
    def convert_one() -> weakref.ref[torch.nn.Module]:
        model, x = two_blocks(), torch.randn(2, 4)
        patch_for_externalization(model, [Block, Inner])
        exported = export(model, x)
        parts = subexport_and_restore(model, exported)
        TorchConverter().add_exported_program(exported, externalized=parts).to_onnx().optimize()
        coreai_onnx.convert(model, (x,), externalize_modules=[Block])
        return weakref.ref(model[0].first.linear.weight)

    gc.collect()
    count = len(_CALLS)
    weights = [convert_one() for _ in range(3)]
    gc.collect()
    assert [w() for w in weights] == [None] * 3
    assert len(_CALLS) == count


def test_a_model_that_is_patched_and_dropped_is_not_kept() -> None:
    model = two_blocks()
    patch_for_externalization(model, [Block])
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
