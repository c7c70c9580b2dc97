"""Kernels that multiply tiles of bfloat16 and of bytes, with all that a process can do to them.

On a CPU without AMX the same calls run on the next target.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import coreai_onnx
from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.errors import CoreaiError
from tests.custom_ops.single_op import ONNX_TYPES
from tests.support.tolerances import assert_close

Inputs = Sequence[torch.Tensor]


def model_of(op: str, inputs: Inputs, attributes: Mapping[str, Any]) -> onnx.ModelProto:
    """One op, with inputs of the dtypes that it gets."""
    names = [f"in{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(
            name, ONNX_TYPES[x.dtype], [f"{name}_{axis}" for axis in range(x.ndim)]
        )
        for name, x in zip(names, inputs, strict=True)
    ]
    output = helper.make_tensor_value_info("out", ONNX_TYPES[inputs[0].dtype], None)
    node = helper.make_node(op, names, ["out"], domain=DOMAIN, **attributes)
    return helper.make_model(
        helper.make_graph([node], op, values, [output]),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )


def attention(
    batch: int = 1, heads: int = 2, tokens: int = 40, keys: int = 50, dim: int = 64
) -> Inputs:
    sizes = ((2 * heads, tokens), (heads, keys), (heads, keys))
    return [torch.randn(batch, h, n, dim, dtype=torch.bfloat16) for h, n in sizes]


def gather_mm(rows: int = 40, depth: int = 96, columns: int = 80) -> Inputs:
    lhs = torch.randn(2, rows, depth, dtype=torch.bfloat16)
    rhs = torch.randn(3, depth, columns, dtype=torch.bfloat16)
    return [lhs, rhs, torch.tensor([1, 0]), torch.tensor([2, 0])]


def linear_nbits(rows: int = 40, groups: int = 3, columns: int = 80) -> Inputs:
    codes = torch.randint(0, 256, (columns, groups, 16), dtype=torch.uint8)
    x = torch.randn(rows, groups * 32, dtype=torch.bfloat16)
    return [x, codes, torch.rand(columns, groups, dtype=torch.bfloat16)]


CASES = {
    "scaled_dot_product_attention": (attention, {"is_causal": 1}),
    "gather_mm": (gather_mm, {}),
    "linear_nbits": (linear_nbits, {"activation_bits": 8}),
}
EMPTY = [
    ("scaled_dot_product_attention", attention(tokens=0)),
    ("scaled_dot_product_attention", attention(keys=0)),
    ("scaled_dot_product_attention", attention(dim=0)),
    ("scaled_dot_product_attention", attention(batch=0)),
    ("scaled_dot_product_attention", attention(heads=0)),
    ("gather_mm", gather_mm(rows=0)),
    ("gather_mm", gather_mm(depth=0)),
    ("gather_mm", gather_mm(columns=0)),
    ("linear_nbits", linear_nbits(rows=0)),
    ("linear_nbits", linear_nbits(groups=0)),
    ("linear_nbits", linear_nbits(columns=0)),
]


def run(session: coreai_onnx.Session, inputs: Inputs) -> torch.Tensor:
    """Return the output as a tensor: numpy has no bfloat16."""
    return torch.from_numpy(session.run(*inputs)[0].view(np.int16)).view(torch.bfloat16)


def shifted(x: torch.Tensor, elements: int) -> torch.Tensor:
    """The same numbers at an address that is not a multiple of 64."""
    memory = torch.empty(x.numel() + elements, dtype=x.dtype)
    memory[elements:] = x.flatten()
    return memory[elements:].view(x.shape)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in every second element, with the axes in reverse order."""
    memory = torch.empty(*reversed(x.shape), 2, dtype=x.dtype)[..., 0]
    other = memory.permute(*reversed(range(x.ndim)))
    other.copy_(x)
    return other


@pytest.mark.parametrize("op", CASES)
def test_addresses_and_strides_do_not_matter(kernels: Path, op: str) -> None:
    make, attributes = CASES[op]
    inputs = make()
    session = coreai_onnx.session(model_of(op, inputs, attributes), kernels=True)
    wanted = run(session, inputs)
    for elements in (1, 3, 31):
        assert run(session, [shifted(x, elements) for x in inputs]).equal(wanted)
    assert run(session, [strided(x) for x in inputs]).equal(wanted)


def outcome(op: str, inputs: Inputs) -> torch.Tensor | str:
    """Return the result, or the message of the refusal."""
    session = coreai_onnx.session(model_of(op, inputs, CASES[op][1]), kernels=True)
    try:
        return run(session, inputs)
    except CoreaiError as error:
        return str(error)


@pytest.mark.parametrize(("op", "inputs"), EMPTY, ids=lambda x: x if isinstance(x, str) else "")
def test_empty_tensors_are_treated_as_by_the_scalar_kernels(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, op: str, inputs: Inputs
) -> None:
    found = outcome(op, inputs)
    monkeypatch.setenv("COREAI_OPS_TARGET", "scalar")
    wanted = outcome(op, inputs)
    if isinstance(wanted, str) or isinstance(found, str):
        assert found == wanted
    else:
        assert_close(found, wanted)


@pytest.mark.parametrize("op", CASES)
def test_other_libraries_use_tiles_at_the_same_time(kernels: Path, op: str) -> None:
    """torch multiplies bfloat16 through oneDNN, which uses tiles of its own shapes."""
    make, attributes = CASES[op]
    inputs = make()
    session = coreai_onnx.session(model_of(op, inputs, attributes), kernels=True, threads=2)
    a, b = (torch.randn(97, 131, dtype=torch.bfloat16) for _ in range(2))
    layer = torch.nn.Linear(131, 50, dtype=torch.bfloat16)

    def ours() -> list[torch.Tensor]:
        return [run(session, inputs)]

    @torch.no_grad()
    def theirs() -> list[torch.Tensor]:
        return [a @ b.T, layer(a)]

    def both(call: int) -> bool:
        order = [0, 1] if call % 2 else [1, 0]
        results = [x for i in order for x in (ours, theirs)[i]()]
        return all(map(torch.equal, results, [x for i in order for x in wanted[i]]))

    wanted = ours(), theirs()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(both, range(80)))


FORK = """
    import os, traceback
    from tests.custom_ops.test_tiles import *

    make, attributes = CASES[{op!r}]
    inputs = make()
    model = model_of({op!r}, inputs, attributes)

    def opened():
        return coreai_onnx.session(model, kernels=True, threads=1)

    def in_child(body):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if body() else 1)
            except BaseException:
                traceback.print_exc()
                os._exit(2)  # not through the destructors of onnxruntime, which wait for threads
        return os.waitpid(child, 0)[1]

    if {before}:
        session = opened()
        wanted = run(session, inputs)
        assert in_child(lambda: run(session, inputs).equal(wanted)) == 0, "same session"
        assert in_child(lambda: run(opened(), inputs).equal(wanted)) == 0, "own session"
    else:
        shared = torch.zeros(1 << 16, dtype=torch.bfloat16).share_memory_()

        def stored():
            found = run(opened(), inputs).flatten()
            return shared[: found.numel()].copy_(found)

        assert in_child(lambda: stored().shape) == 0
        wanted = shared.clone()
        assert stored().any() and shared.equal(wanted)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("before", [True, False], ids=["parent_ran", "child_only"])
@pytest.mark.parametrize("op", CASES)
def test_forked_processes(kernels: Path, op: str, before: bool) -> None:
    program = textwrap.dedent(FORK.format(op=op, before=before))
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=120)


ROWS = (1, 3, 16, 47, 48, 49, 64, 100, 255, 257, 1025, 4096)
ODD = torch.tensor([0.0, -0.0, 1e-40, -1e-20, 3e38, float("inf"), -float("inf"), float("nan")])


class Products(torch.nn.Module):
    """A linear layer, and a product without a bias."""

    def __init__(self, depth: int, columns: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(depth, columns)
        self.matrix = torch.nn.Parameter(torch.randn(columns, 35))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ self.matrix


def tiled(depth: int, columns: int) -> tuple[Products, coreai_onnx.OnnxProgram]:
    module = Products(depth, columns).eval()
    example = (torch.randn(2, 5, depth),)
    dims = ({0: torch.export.Dim("a"), 1: torch.export.Dim("b")},)
    program = coreai_onnx.convert(module, example, dynamic_shapes=dims)
    program.optimize(target="kernels", float32_tiles=True)
    assert program.pass_report.counts["fuse_tiled_products"] == 2
    return module, program


@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (70, 130), (900, 33)])
def test_float32_has_the_accuracy_of_float32_for_any_rows(depth: int, columns: int) -> None:
    module, program = tiled(depth, columns)
    wide = Products(depth, columns).double()
    wide.load_state_dict(module.state_dict())
    by_tiles = coreai_onnx.session(program, float32_tiles=True, threads=2)
    stock = coreai_onnx.session(program, kernels=False)
    for rows in ROWS if depth == 70 else ROWS[:8]:
        x = torch.randn(1, rows, depth)
        want = wide(x.double()).detach()
        errors = [
            float((torch.as_tensor(one.run(x)[0]).double() - want).square().mean().sqrt())
            for one in (by_tiles, stock)
        ]
        assert errors[0] <= 1.5 * errors[1] + 1e-7
        assert_close(torch.as_tensor(by_tiles.run(x)[0]), want.float())


def test_rows_that_tiles_cannot_multiply_are_those_of_multiply_adds() -> None:
    _, program = tiled(70, 130)
    by_tiles = coreai_onnx.session(program, float32_tiles=True)
    stock = coreai_onnx.session(program, kernels=False)
    x = torch.randn(1, 200, 70)
    for row, value in enumerate(ODD):
        x[0, 3 * row, row] = value
    x[0, 50] = x[0, 50] * 1e-30
    x[0, 60] = x[0, 60] * 1e30
    x[0, 70] = 0
    got, want = (torch.as_tensor(one.run(x)[0]) for one in (by_tiles, stock))
    finite = want.isfinite().all(-1)
    assert_close(got[finite], want[finite])
    assert got.isfinite().all(-1).equal(finite)


def test_weights_that_tiles_cannot_multiply() -> None:
    module = torch.nn.Linear(70, 40).eval()
    for value in ODD[2:6]:
        with torch.no_grad():
            module.weight[3, 4] = value
        x = torch.randn(64, 70)
        program = coreai_onnx.convert(module, (x,)).optimize(target="kernels", float32_tiles=True)
        got = coreai_onnx.session(program, float32_tiles=True).run(x)[0]
        assert_close(torch.as_tensor(got), module(x).detach())


def test_tiles_are_not_used_unless_a_session_asks_for_them() -> None:
    _, program = tiled(70, 130)
    x = torch.randn(1, 100, 70)
    stock = coreai_onnx.session(program, kernels=False).run(x)[0]
    assert np.array_equal(coreai_onnx.session(program, kernels=True).run(x)[0], stock)
    with pytest.raises(CoreaiError, match="exclude each other"):
        coreai_onnx.session(program, float32_tiles=True, deterministic=True)
    with pytest.raises(CoreaiError, match="float32_tiles=True needs the kernels"):
        coreai_onnx.session(program, float32_tiles=True, kernels=False)
    with pytest.raises(CoreaiError, match="float32_tiles=True needs the target kernels"):
        program.optimize(float32_tiles=True)
