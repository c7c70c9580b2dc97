"""kv_cache_update through onnxruntime against its declared reference."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import torch

from coreai_onnx.composites.caches import KV_CACHE_UPDATE as COMPOSITE
from tests.custom_ops.single_op import DTYPES, open_session, run_op, single_op_model
from tests.support.tolerances import assert_close

OP = "kv_cache_update"
I32, I64 = torch.int32, torch.int64
CASES = [
    # cache, update, position
    ((2, 3, 7, 4), (2, 3, 1, 4), torch.tensor(6)),
    ((2, 3, 7, 4), (2, 3, 2, 4), torch.tensor([0, 5])),
    ((2, 3, 7, 4), (2, 3, 7, 4), torch.tensor([0], dtype=I32)),
    ((2, 3, 7, 4), (2, 3, 3, 4), torch.tensor([[4], [1]], dtype=I32)),
    ((1, 1, 2, 1), (1, 1, 1, 1), torch.tensor(1)),
    ((3, 4, 500, 33), (3, 4, 17, 33), torch.tensor([100, 0, 483])),
    ((2, 3, 7, 4), (2, 3, 0, 4), torch.tensor(7)),
    ((0, 3, 7, 4), (0, 3, 1, 4), torch.zeros(0, dtype=I64)),
    ((2, 3, 7, 0), (2, 3, 1, 0), torch.tensor(1)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("cache", "update", "position"), CASES)
def test_agrees_with_the_reference(kernels, cache, update, position, dtype):
    inputs = [torch.randn(cache).to(dtype), torch.randn(update).to(dtype), position]
    actual = run_op(kernels, OP, inputs, threads=2)
    wanted = COMPOSITE.reference(*inputs) if position.numel() else inputs[0]
    assert actual.equal(wanted)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cache_bound_as_output_is_updated_in_place(kernels, threads):
    cache, update = torch.randn(2, 3, 70, 40), torch.randn(2, 3, 2, 40)
    inputs = [cache, update, torch.tensor([5, 68])]
    model = single_op_model(OP, inputs, {})
    model.graph.node[-1].op_type = "Identity"  # of the op's output, which it names
    del model.graph.node[-1].attribute[:]
    model.graph.node.pop()
    model.graph.node[0].output[0] = "output0"
    session = open_session(model, kernels, threads)
    held = ort.OrtValue.ortvalue_from_numpy(cache.numpy().copy())
    binding = session.io_binding()
    binding.bind_ortvalue_input("in0", held)
    binding.bind_cpu_input("in1", update.numpy())
    binding.bind_cpu_input("in2", inputs[2].numpy())
    binding.bind_ortvalue_output("output0", held)
    session.run_with_iobinding(binding)
    assert np.array_equal(held.numpy(), COMPOSITE.reference(*inputs).numpy())


def test_an_input_that_is_used_again_is_kept(kernels):
    """onnxruntime may give the op its input's memory only if nobody else reads it."""
    cache, update = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 1, 4)
    actual = run_op(kernels, OP, [cache, update, torch.tensor(3)])
    assert_close(actual, COMPOSITE.reference(cache, update, torch.tensor(3)))
    assert not actual.equal(cache)


C, U = torch.ones(2, 3, 7, 4), torch.ones(2, 3, 2, 4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [C, U, torch.tensor(6)],
            r"element 0 of input position is 6, from where update .*\[2, 3, 2",
        ),
        ([C, U, torch.tensor([0, -1])], "element 1 of input position is -1, from where"),
        ([C, U, torch.tensor(2**62)], "position is 4611686018427387904, from where"),
        ([C, torch.ones(2, 3, 8, 4), torch.tensor(0)], "position is 0, from where update of shape"),
        ([C, U, torch.tensor([0, 0, 0])], r"position of shape \[3\] must have one element"),
        ([C, U, torch.tensor(0.0)], "position is float, expected int32 or int64"),
        ([C, torch.ones(1, 3, 2, 4), torch.tensor(0)], r"differ in the axis .*\[1, 3, 2, 4\]"),
        ([C, torch.ones(2, 1, 2, 4), torch.tensor(0)], r"differ in the axis .*\[2, 1, 2, 4\]"),
        ([C, torch.ones(2, 3, 2, 3), torch.tensor(0)], r"differ in the axis .*\[2, 3, 2, 3\]"),
        ([C[0], U[0], torch.tensor(0)], r"must have rank 4 .* cache \[3, 7, 4\]"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, message):
    with pytest.raises(Exception, match=rf"kv_cache_update: .*{message}"):
        run_op(kernels, OP, inputs)
