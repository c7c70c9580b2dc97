"""verify_determinism finds what depends on other rows, and promises hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging import verify_determinism
from coreai_onnx.debugging.determinism import AXES, BATCHES, THREADS
from coreai_onnx.debugging.row_runs import Runs
from coreai_onnx.errors import ComparisonError
from tests.support.huggingface_folders import llama
from tests.support.kernel_targets import targets_of_this_machine
from tests.support.small_models import parse
from tools.sweep_determinism import (
    CACHED_LENGTH,
    CACHED_ROWS,
    CHUNKS,
    Cache,
    compare_caches,
    program_of,
)

MODEL = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[batch, 3] x) => (float[batch, 3] y) {{ {nodes} }}"""


def rows(count: int, columns: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((count, columns)).astype(np.float32)}


def test_a_sum_that_depends_on_the_batch_is_found_with_its_node() -> None:
    nodes = "n = Shape <end = 1>(x) f = Cast <to = 1>(n) z = Neg(x) y = Add(z, f)"
    found = verify_determinism(parse(MODEL.format(nodes=nodes)), rows(5), kernels=False)
    assert not found.ok
    assert found.axes == ("repeated", "threads")
    (batch,) = [one for one in found.deviations if one.axis == "batch"]
    assert batch.compared == 3 * 3 * sum(size for size in BATCHES if size <= 5)
    assert batch.elements == batch.compared <= batch.bits
    assert batch.case == "row 0 in a batch of 2"
    assert batch.node.startswith("Add")
    assert "bits differ in" in str(found)


def test_a_run_that_draws_numbers_is_found() -> None:
    nodes = "r = RandomNormalLike(x) y = Add(x, r)"
    found = verify_determinism(parse(MODEL.format(nodes=nodes)), rows(1), kernels=False)
    assert "repeated" not in found.axes
    assert found.deviations[0].case == "run 2"


def test_equal_bits() -> None:
    found = verify_determinism(parse(MODEL.format(nodes="y = Neg(x)")), rows(64), kernels=False)
    assert found.ok
    assert found.axes == ("repeated", "threads", "batch")
    (threads,) = [one for one in found.deviations if one.axis == "threads"]
    assert threads.compared == 64 * 3 * (len(THREADS) - 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"axes": ["rows"]}, "axes must be some of repeated, .*, got 'rows'"),
        ({"batch": "seq"}, "the inputs have no dim 'seq'; there are batch"),
        ({"inputs": {}}, "there is no value of the input 'x'"),
    ],
)
def test_wrong_arguments(settings: dict, message: str) -> None:
    arguments = {"inputs": rows(2), "kernels": False} | settings
    with pytest.raises(ComparisonError, match=message):
        verify_determinism(parse(MODEL.format(nodes="y = Neg(x)")), **arguments)


class Block(torch.nn.Module):
    """The layers of most models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(48)
        self.first, self.second = torch.nn.Linear(48, 333), torch.nn.Linear(333, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.first(self.norm(x)))
        scores = torch.softmax(torch.matmul(x, x.transpose(1, 2)), dim=-1)
        return torch.sin(self.second(hidden)) + torch.matmul(scores, x)


def present(kernels: Path) -> tuple[str, ...]:
    """The axes of a deterministic decoder with a static cache on this machine."""
    several = set(targets_of_this_machine(kernels)) != {"scalar_fma", "scalar"}
    return AXES if several else AXES[:-1]


def test_rows_and_threads_of_a_deterministic_session(kernels: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 7, 48)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = coreai_onnx.convert(Block().eval(), (x,), dynamic_shapes=shapes)
    program.optimize(target="kernels", deterministic=True)
    calls = program.composites()
    assert calls["ai.coreai::gather_mm"] == 2
    assert calls["ai.coreai::scaled_dot_product_attention"] == 1
    found = verify_determinism(program, {"x": x.numpy()}, deterministic=True)
    assert found.ok, found
    decoders = {"chunks", "cache"}
    assert found.axes == tuple(axis for axis in present(kernels) if axis not in decoders)


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_chunks_of_a_deterministic_session(
    cache: Literal["growing", "static"], tmp_path: Path, kernels: Path
) -> None:
    folder = tmp_path / "llama"
    coreai_onnx.export_model(llama(), folder, cache=cache, target="kernels", check=False)
    program = coreai_onnx.OnnxProgram.load(folder / "model.onnx")
    program.optimize(target="kernels", deterministic=True)
    batch, length = 5, 23
    inputs = {
        "input_ids": np.random.default_rng(0).integers(0, 32, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
        "position_ids": np.tile(np.arange(length), (batch, 1)),
    }
    found = verify_determinism(program, inputs, deterministic=True)
    assert found.ok, found
    absent = {"cache"} if cache == "growing" else set()
    assert found.axes == tuple(axis for axis in present(kernels) if axis not in absent)


def test_calls_that_count_are_found_in_chunks() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[batch, seq] x, float[1] count) => (float[batch, seq] y, float[1] count_out)
    <float[1] one = {1.0}, float[1] count = {1.0}>
    { y = Mul(x, count)  count_out = Add(count, one) }"""
    model = parse(text, {"coreai.states": [{"input": "count", "output": "count_out"}]})
    found = verify_determinism(model, rows(2, 4), kernels=False)
    assert found.axes == ("repeated", "threads", "batch")
    assert {one.node.split()[0] for one in found.deviations if one.axis == "chunks"} == {"Mul"}
    assert found.deviations[-2].case == "chunks of 1"


@pytest.mark.filterwarnings("ignore:.*cannot register the kernels:RuntimeWarning")
def test_targets_that_the_processor_lacks_are_no_bodies(kernels: Path) -> None:
    program = coreai_onnx.convert(torch.nn.RMSNorm(8), (torch.randn(3, 8),))
    (name,) = (info.name for info in coreai_onnx.session(program).inputs)
    runs = Runs(program.model, {name: rows(3, 8)["x"]}, None, None, {})
    found = runs.targets()
    assert set(found) == set(targets_of_this_machine(kernels)) - {"scalar_fma", "amx"}


def test_norms_have_equal_bits_on_every_target_in_any_session(kernels: Path) -> None:
    if present(kernels) != AXES:
        pytest.skip("this machine has one target")
    torch.manual_seed(0)
    x = torch.randn(3, 1000)
    program = coreai_onnx.convert(torch.nn.RMSNorm(1000), (x,), dynamic_shapes=({0: "batch"},))
    program.optimize(target="kernels")
    before = program.model.graph[-1]
    found = verify_determinism(program, {before.inputs[0].name: x.numpy()}, axes=["targets"])
    assert found.ok, found
    assert found.axes == ("targets",)


def test_growing_static_and_paged_caches(tmp_path: Path) -> None:
    programs = {cache: program_of(tmp_path / cache, llama(), cache) for cache in get_args(Cache)}
    differ, compared = compare_caches(programs)
    assert (differ, compared) == (0, 3 * len(CHUNKS) * CACHED_ROWS * CACHED_LENGTH * 260)
