"""Opening of models: files and models in memory, kernels, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.errors import KernelsNotBuiltError, LoadError, SessionError
from coreai_onnx.model.files import saving
from coreai_onnx.model.files.loading import load_model
from coreai_onnx.model.files.saving import save_models, to_proto
from coreai_onnx.runtime.libraries import library
from coreai_onnx.runtime.sessions import opening
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.prepared import SETTLED
from coreai_onnx.runtime.sessions.sources import ModelSource
from coreai_onnx.targets.providers import Choice
from tests.support.execution_providers import IDLE
from tests.support.small_models import add_model, layers_model, linear_model, linear_weights
from tests.support.tolerances import assert_close
from tools.bench.composite_model import composite_model


def test_a_large_model_goes_through_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TEMPORARY_FILE_BYTES", 100)
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 100)  # as if it did not fit into a message
    s = session(linear_model())
    x, weights = np.ones((2, 8), np.float32), linear_weights()
    assert_close(s.run(x)["y"], x @ weights["weight"] + weights["bias"])
    folder = Path(s._model._folder.name)
    assert sorted(file.name for file in folder.iterdir()) == ["model.onnx", "model.onnx.data"]
    s._model._folder.cleanup()
    assert_close(s.run(x)["y"], x @ weights["weight"] + weights["bias"])
    assert not folder.exists()


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"nowhere.onnx: no such file"):
        session(tmp_path / "nowhere.onnx")
    with pytest.raises(SessionError, match="is a folder"):
        session(tmp_path)
    broken = tmp_path / "broken.onnx"
    for content in (b"", b"not a model", to_proto(linear_model()).SerializeToString()[:700]):
        broken.write_bytes(content)
        with pytest.raises(SessionError, match=rf"cannot load {broken}"):
            session(broken)
    with pytest.raises(SessionError, match="cannot load the given bytes"):
        session(b"not a model")
    with pytest.raises(SessionError, match="cannot open a int"):
        session(3)


@pytest.mark.parametrize("source", ["pipe", "/dev/zero"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, source: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SessionError, match="is not a regular file"):
        session(tmp_path / source)


def test_a_file_larger_than_a_message_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(1 << 41)
    with pytest.raises(SessionError, match="larger than 2 GiB; weights belong in a data file"):
        session(tmp_path / "m.onnx")


@pytest.mark.parametrize("size", [2**63 - 1, -(2**63), 2**62])
@pytest.mark.parametrize("place", ["input", "output", "initializer"])
def test_declared_sizes_that_no_memory_can_hold(tmp_path: Path, size: int, place: str) -> None:
    proto = to_proto(linear_model())
    value = getattr(proto.graph, place)[0]
    if place == "initializer":
        value.dims[0] = size
    else:
        value.type.tensor_type.shape.dim[0].dim_value = size
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(SessionError, match=r"cannot load the model: .* which no memory can hold"):
        session(tmp_path / "m.onnx")
    with pytest.raises(LoadError, match="has the shape"):
        load_model(tmp_path / "m.onnx")


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_models({path: linear_model()}, tmp_path / "m.onnx.data", external_data=True)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(SessionError, match=r"m\.onnx\.data"):
        session(path)


def test_threads() -> None:
    s = session(add_model(), threads=2)
    assert s.ort.get_session_options().intra_op_num_threads == 2
    for wrong in (0, 1025, 10**6, 1.5):
        with pytest.raises(SessionError, match=rf"threads={wrong}; give a number from 1 to 1024"):
            session(add_model(), threads=wrong)


def test_kernels_that_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere/ops.so")
    with pytest.raises(KernelsNotBuiltError):
        session(layers_model(), kernels=True)
    assert not session(layers_model()).kernels
    assert not session(layers_model(), kernels=False).kernels


def test_a_library_that_onnxruntime_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "ops.so"
    bad.write_bytes(b"not a library")
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, str(bad))
    with pytest.raises(SessionError, match="cannot register the kernels"):
        session(layers_model(), kernels=True)
    with pytest.warns(RuntimeWarning, match="function bodies are used instead"):
        assert not session(layers_model()).kernels


def test_kernels_run_when_they_are_built(kernels: Path) -> None:
    assert kernels.is_file()
    s = session(layers_model())
    assert s.kernels
    assert repr(s).startswith("Session (kernels)")
    x = np.full((1, 4), 1.5, np.float32)
    assert_close(s.run(x)["y"], session(layers_model(), kernels=False).run(x)["y"])


@pytest.mark.filterwarnings("ignore:AzureExecutionProvider takes no node:RuntimeWarning")
@pytest.mark.parametrize("provider", [IDLE, (IDLE, {}), "cpu", None])
def test_composites_run_on_bodies_with_a_provider_other_than_the_cpu(
    provider: Choice | None, kernels: Path
) -> None:
    assert kernels.is_file()
    by_default = session(layers_model(), provider=provider)
    asked = session(layers_model(), provider=provider, kernels=True)
    assert by_default.kernels == (provider in ("cpu", None))
    assert asked.kernels
    x = np.full((1, 4), 1.5, np.float32)
    expected = session(layers_model(), kernels=False).run(x)["y"]
    assert_close(by_default.run(x)["y"], expected)
    assert_close(asked.run(x)["y"], expected)


_RUN = """
import hashlib, sys
from pathlib import Path
import numpy as np
from coreai_onnx import session
from coreai_onnx.runtime.memory import mapped_below

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

path, prepack = sys.argv[1], {"True": True, "False": False}[sys.argv[2]]
before = peak()
with mapped_below(peak() * 1024 + (32 << 20)):
    model = session(path, prepack=prepack, threads=2)
    x = np.random.default_rng(0).normal(size=(1, 8192)).astype(np.float32)
    result = model.run(x)["result_0"]
print(peak() - before, hashlib.sha256(result.tobytes()).hexdigest())
"""


@pytest.mark.usefixtures("kernels")
def test_weights_that_exceed_the_memory_are_read_in_each_run(tmp_path: Path) -> None:
    """A product by 288 MiB needs less memory than that; its result is that of packed weights."""
    columns, groups = 1 << 16, 256
    codes = np.random.default_rng(0).integers(0, 256, (columns, groups, 16), np.uint8)
    scales = np.full((columns, groups), 2.0**-10, np.float16)
    inputs = [torch.zeros(1, groups * 32), torch.from_numpy(codes), torch.from_numpy(scales)]
    proto = composite_model("linear_nbits", inputs, {"group_size": 32}, constants=(1, 2))
    path = tmp_path / "model.onnx"
    save_models({path: ir.from_proto(proto)}, tmp_path / "model.onnx.data", external_data=True)
    found = {}
    for prepack in (True, False):
        arguments = [sys.executable, "-c", _RUN, str(path), str(prepack)]
        output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        kilobytes, found[prepack] = output.split()
        assert (int(kilobytes) < 288 << 10) == (not prepack), output
        # Pages of the file do not stay in memory beside the packed weights.
        assert int(kilobytes) < 400 << 10, output
    assert found[True] == found[False]


_SHARE = """
import hashlib, sys
from pathlib import Path
import numpy as np
from coreai_onnx import session

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

path, packed = sys.argv[1], sys.argv[2]
before = anonymous()
prepack = None if len(sys.argv) == 3 else sys.argv[3] == "True"
model = session(path, packed_weights=packed or None, prepack=prepack, threads=1)
after = anonymous()
x = np.random.default_rng(0).normal(size=(5, 1024)).astype(np.float32)
print(after - before, hashlib.sha256(model.run(x)["result_0"].tobytes()).hexdigest())
"""


@pytest.mark.usefixtures("kernels")
@pytest.mark.skipif(sys.platform == "win32", reason="files of packed weights are not mapped there")
@pytest.mark.parametrize("composite", ["linear_nbits", "gather_mm"])
def test_packed_weights_are_mapped_by_every_process(tmp_path: Path, composite: str) -> None:
    """32 MiB of weights are packed once; the next process has none of them in its own memory."""
    random = np.random.default_rng(0)
    if composite == "linear_nbits":
        codes = random.integers(0, 256, (1 << 16, 32, 16), np.uint8)
        scales = np.full((1 << 16, 32), 2.0**-10, np.float16)
        weight, attributes = [torch.from_numpy(codes), torch.from_numpy(scales)], {"group_size": 32}
    else:
        weight, attributes = [torch.from_numpy(random.random((1024, 8192), np.float32))], {}
    inputs = [torch.zeros(5, 1024), *weight]
    proto = composite_model(composite, inputs, attributes, constants=range(1, len(inputs)))
    path, packed = tmp_path / "model.onnx", tmp_path / "packed"
    save_models({path: ir.from_proto(proto)}, tmp_path / "model.onnx.data", external_data=True)
    time.sleep(SETTLED / 1e9)  # before, a file is not known by its times
    results, sizes = set(), []
    for place in ("", str(packed), str(packed)):
        arguments = [sys.executable, "-c", _SHARE, str(path), place]
        output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        kilobytes, result = output.split()
        results.add(result)
        sizes.append(packed.stat().st_size if place else 0)
    assert len(results) == 1
    assert sizes[1] == sizes[2] > 32 << 20
    if sys.platform == "linux":
        assert int(kilobytes) < 16 << 10


@pytest.mark.usefixtures("kernels")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
def test_packed_weights_leave_other_products_to_the_mapped_file(tmp_path: Path) -> None:
    """A product of the kernels and one of onnxruntime, by 32 MiB each."""
    random = np.random.default_rng(0)
    weights = [torch.from_numpy(random.random((1024, 8192), np.float32)) for _ in range(2)]
    inputs = [torch.zeros(5, 1024), weights[0]]
    model = ir.from_proto(composite_model("gather_mm", inputs, {}, constants=(1,)))
    right = ir.val("right", const_value=ir.tensor(weights[1].numpy(), name="right"))
    model.graph.initializers.add(right)
    (result,), (x, *_) = model.graph.outputs, model.graph.inputs
    products = [ir.node("MatMul", [x, right])]
    products.append(ir.node("Add", [result, products[0].outputs[0]]))
    model.graph.extend(products)
    total = products[1].outputs[0]
    total.type, total.shape, result.name = result.type, result.shape, "first"
    total.name, model.graph.outputs[0] = "result_0", total
    path, packed = tmp_path / "model.onnx", tmp_path / "packed"
    save_models({path: model}, tmp_path / "model.onnx.data", external_data=True)
    time.sleep(SETTLED / 1e9)  # before, a file is not known by its times
    sizes = {}
    for prepack in ("True", "False", "False"):
        arguments = [sys.executable, "-c", _SHARE, str(path), str(packed), prepack]
        sizes[prepack] = int(subprocess.check_output(arguments, text=True).split()[0])
        assert packed.stat().st_size > 32 << 20
    assert sizes["True"] > 32 << 10
    assert sizes["False"] < 16 << 10


@pytest.mark.usefixtures("kernels")
@pytest.mark.skipif(sys.platform == "win32", reason="files of packed weights are not mapped there")
def test_another_file_is_not_overwritten_by_packed_weights(tmp_path: Path) -> None:
    inputs = [torch.zeros(1, 64), torch.zeros(64, 64)]
    model = composite_model("gather_mm", inputs, {}, constants=(1,))
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(SessionError, match="is not a file of packed weights of this version"):
        session(model, packed_weights=other)
    assert other.read_text() == "mine"
    with pytest.raises(SessionError, match=r"cannot open .*nowhere.*: No such file or directory"):
        session(model, packed_weights=tmp_path / "nowhere" / "packed")


def test_weights_of_more_than_the_memory_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session(linear_model())._model._prepacks
    monkeypatch.setattr(opening, "memory_bytes", lambda: 100)
    assert not session(linear_model())._model._prepacks
    assert session(linear_model(), prepack=True)._model._prepacks


def test_a_data_file_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    """One that is sparse: a run reads one row of each of five weights."""
    path, data, columns = tmp_path / "model.onnx", tmp_path / "model.onnx.data", 1 << 14
    rows = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * columns * 4)
    size = rows * columns * 4
    with data.open("wb") as file:
        file.truncate(5 * size)
    places = [
        ir.Value(
            name=f"w{i}",
            const_value=ir.ExternalTensor(
                data.name, i * size, size, ir.DataType.FLOAT, shape=ir.Shape([rows, columns]),
                name=f"w{i}",
            ),
        )
        for i in range(5)
    ]  # fmt: skip
    indices = ir.val("indices", ir.DataType.INT64, [1])
    nodes = [ir.node("Gather", [place, indices]) for place in places]
    nodes.append(ir.node("Sum", [node.outputs[0] for node in nodes]))
    total = nodes[-1].outputs[0]
    total.name, total.type = "total", ir.TensorType(ir.DataType.FLOAT)
    total.shape = ir.Shape([1, columns])
    graph = ir.Graph([indices], [total], nodes=nodes, initializers=places, opset_imports={"": 21})
    path.write_bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    opened = session(path)
    assert not opened.run(np.array([rows - 1]))["total"].any()
    assert data.stat().st_blocks * 512 < size


LOW_RANK = """<ir_version: 10, opset_import: ["" : 23, "ai.coreai" : 1]>
main (float[n, 2] x, float[2, r] l_lora_A_weight, float[r, c] l_lora_B_weight)
  => (float[n, 2] y, float[n, 2] z) <
  float[2, 2] w = {1, 2, 3, 4}, float[2, 0] l_lora_A_weight = {}, float[0, 1] l_lora_B_weight = {}
> {
  p = MatMul (x, w)
  a = ai.coreai.add_low_rank (p, x, l_lora_A_weight, l_lora_B_weight)  z = Relu (a)
  q = MatMul (z, w)  y = ai.coreai.add_low_rank (q, z, l_lora_A_weight, l_lora_B_weight)
}
<domain: "ai.coreai", opset_import: ["" : 23]> add_low_rank (input, x, down, up) => (output) {
  h = MatMul (x, down)  d = MatMul (h, up)  output = Add (input, d)
}"""


def with_adapters(path: Path, text: str = LOW_RANK) -> Path:
    """Write a model with an adapter of two layers, its weight in a data file."""
    model = ir.from_onnx_text(text)
    for value in model.graph.inputs:
        old = value.name or ""
        value.name = old.replace("_lora_", ".lora_").replace("_weight", ".weight")
        if old in model.graph.initializers:
            model.graph.initializers[value.name] = model.graph.initializers.pop(old)
    ir.save(model, path, external_data="data", size_threshold_bytes=0)
    return path


@pytest.mark.parametrize("kernels", [False, True])
def test_inputs_for_adapters_may_be_left_out(tmp_path: Path, *, kernels: bool) -> None:
    path = with_adapters(tmp_path / "model.onnx")
    whole, plain = (session(path, kernels=kernels, adapters=one) for one in (True, False))
    assert len(whole.optional_inputs) == 2
    assert not plain.optional_inputs
    assert [x.name for x in plain.outputs] == ["y", "z"]
    x = np.array([[1, -2], [3, 4], [0, 5]], np.float32)
    for name, array in whole.run(x).items():
        np.testing.assert_array_equal(plain.run(x)[name], array)
    assert "add_low_rank" in {node.op_type for node in plain.model.graph}, "the file is the same"
    again = plain.with_adapters()
    factors = {"l.lora_A.weight": np.ones((2, 1)), "l.lora_B.weight": np.ones((1, 2))}
    factors = {name: array.astype(np.float32) for name, array in factors.items()}
    np.testing.assert_array_equal(again.run(x, **factors)["z"], whole.run(x, **factors)["z"])
    assert again.with_adapters() is again
    plain.close()
    with pytest.raises(SessionError, match="closed"):
        plain.with_adapters()


def test_adapters_of_other_operators_stay(tmp_path: Path) -> None:
    text = LOW_RANK.replace("q = MatMul (z, w)", "q = MatMul (z, l_lora_A_weight)  e = Neg (q)")
    text = text.replace("(q, z,", "(z, z,")
    other = session(with_adapters(tmp_path / "model.onnx", text), adapters=False)
    assert len(other.optional_inputs) == 2
    assert other.with_adapters() is other


def test_a_data_file_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = with_adapters(tmp_path / "inside" / "model.onnx")
    (tmp_path / "inside" / "data").rename(tmp_path / "data")
    model = onnx.load(path, load_external_data=False)
    (weight,) = (one for one in model.graph.initializer if one.name == "w")
    weight.external_data[0].value = "../data"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SessionError, match="cannot load"):
        session(path, adapters=False)


def test_composites_of_a_file_that_is_not_inspected(tmp_path: Path) -> None:
    inputs = (torch.ones(2, 8), torch.ones(8))
    content = composite_model("rms_norm", inputs, {}).SerializeToString()
    path = tmp_path / "model.onnx"
    for written, expected in ((content, ["rms_norm"]), (content[:-9], None), (b"", None)):
        path.write_bytes(written)
        assert ModelSource(path).op_types() == expected
    assert ModelSource(content).op_types() is None
