"""Random graphs: all passes together keep every bit, every output, and have nothing left to do."""

from __future__ import annotations

import hypothesis
import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.passes import TARGETS
from tests.passes.random_graphs import BINDINGS, ROUNDED, STEPS, inputs_of, models
from tests.passes.rewriting import optimize_for, run, run_passes, same_bytes
from tests.support.tolerances import assert_close


@hypothesis.given(models())
@hypothesis.settings(max_examples=300)
def test_all_passes_keep_every_bit(drawn: ir.Model) -> None:
    before, model = ir.from_proto(ir.to_proto(drawn)), ir.from_proto(ir.to_proto(drawn))
    onnx.checker.check_model(ir.to_proto(before), full_check=True)
    interface = [v.name for v in (*model.graph.inputs, *model.graph.outputs)]
    run_passes(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == interface
    again = ir.from_proto(ir.to_proto(model))
    assert same_bytes(again, model)
    assert run_passes(again).total == 0
    assert same_bytes(again, model)
    for binding in BINDINGS:
        feeds = inputs_of(model, binding)
        for expected, actual in zip(run(before, feeds), run(model, feeds), strict=True):
            assert actual.dtype == expected.dtype
            assert actual.shape == expected.shape
            assert actual.tobytes() == expected.tobytes()


@hypothesis.given(models((*STEPS, *ROUNDED, *ROUNDED)))
@hypothesis.settings(max_examples=60)
def test_targets_keep_shapes_zeros_and_infinities(drawn: ir.Model) -> None:
    before = ir.from_proto(ir.to_proto(drawn))
    onnx.checker.check_model(ir.to_proto(before), full_check=True)
    feeds = [inputs_of(before, binding) for binding in BINDINGS]
    wanted = [run(before, one) for one in feeds]
    for target in TARGETS:
        model = ir.from_proto(ir.to_proto(drawn))
        optimize_for(model, target)
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        for one, results in zip(feeds, wanted, strict=True):
            for expected, actual in zip(results, run(model, one), strict=True):
                assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
                np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))
                assert_close(actual, expected)
                zero = (actual == 0) & (expected == 0)
                np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))
