"""Sessions of graphs that an earlier session has optimized and kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.errors import SessionError
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.runtime.sessions import prepared
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.prepared import PreparedModel
from tests.support.small_models import linear_model
from tools.bench.composite_model import composite_model

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(sys.platform == "win32", reason="files of packed weights are not mapped"),
]
MEBIBYTES = 32

_OPEN = """
import hashlib, sys
from pathlib import Path
import numpy as np
from coreai_onnx import session
from coreai_onnx.runtime.sessions import prepared

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

prepared.SETTLED = 0
before = anonymous()
model = session(sys.argv[1], packed_weights=sys.argv[2], prepack=False, threads=1)
x = np.random.default_rng(0).normal(size=(5, 1024)).astype(np.float32)
result = hashlib.sha256(model.run(x)[0].tobytes()).hexdigest()
heavy = {"onnx", "onnx_ir", "sympy", "torch", "transformers"} & set(sys.modules)
print(anonymous() - before, result, len(heavy))
"""


class Opened(NamedTuple):
    kilobytes: int
    result: str
    heavy: int


def opened(path: Path) -> Opened:
    """Open a file in a process, and run it."""
    words = [sys.executable, "-c", _OPEN, str(path), str(path.with_name("packed"))]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return Opened(int(output[0]), output[1], int(output[2]))


def write(path: Path, kind: str) -> None:
    """Write a model with 32 MiB of weights in a data file."""
    random = np.random.default_rng(0)
    if kind == "4 bits":
        codes = random.integers(0, 256, (MEBIBYTES << 11, 32, 16), np.uint8)
        weights = [codes, np.full(codes.shape[:2], 2.0**-10, np.float16)]
        inputs = [torch.zeros(5, 1024), *map(torch.from_numpy, weights)]
        proto = composite_model("linear_nbits", inputs, {"group_size": 32}, constants=(1, 2))
        model = ir.from_proto(proto)
    else:
        values = random.random((1024, MEBIBYTES << 8), np.float32)
        weight = ir.tensor(values.T.copy() if kind == "transposed" else values, name="w")
        x, w = ir.val("x", ir.DataType.FLOAT, ["rows", 1024]), ir.val("w", const_value=weight)
        turned = [ir.node("Transpose", [w], {"perm": [1, 0]})] * (kind == "transposed")
        for node in turned:
            node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape(values.shape)
        product = ir.node("MatMul", [x, turned[0].outputs[0] if turned else w])
        (y,) = product.outputs
        y.name, y.type, y.shape = "y", x.type, ir.Shape(["rows", MEBIBYTES << 8])
        nodes = [*turned, product]
        graph = ir.Graph([x], [y], nodes=nodes, initializers=[w], opset_imports={"": 21})
        model = ir.Model(graph, ir_version=10)
    save_models({path: model}, path.with_name("weights.data"), external_data=True)


def opened_here(path: Path) -> tuple[bool, str]:
    """Open a file in this process; return whether its graph was prepared, and the result."""
    s = session(path, packed_weights=path.with_name("packed"), prepack=False, threads=1)
    x = np.random.default_rng(0).normal(size=(5, 1024)).astype(np.float32)
    result = s.run(x)[0].tobytes()
    assert result == session(path, prepack=False, threads=1).run(x)[0].tobytes()
    return isinstance(s._model, PreparedModel), hashlib.sha256(result).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "transposed", "4 bits"])
def test_the_next_process_reads_no_model_and_copies_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(prepared, "SETTLED", 0)
    path, data = tmp_path / "model.onnx", tmp_path / "weights.data"
    write(path, kind)
    time.sleep(2.1)  # the kernels look for weights by their place if the file is older
    was_prepared, result = opened_here(path)
    process = opened(path)
    assert not was_prepared
    assert (process.result, process.heavy) == (result, 0)
    if sys.platform == "linux":
        assert process.kilobytes < 16 << 10  # of 32 MiB
    # Other weights of the same size, in the same file, with the times of the former ones.
    status = data.stat()
    with data.open("r+b") as file:
        file.seek(1 << 20)
        file.write(np.random.default_rng(1).random(1 << 18, np.float32).tobytes())
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
    was_prepared, changed = opened_here(path)
    assert not was_prepared
    assert changed != result
    assert opened_here(path) == (True, changed)


def saved(folder: Path) -> Path:
    path = folder / "model.onnx"
    save_models({path: linear_model()}, folder / "weights.data", external_data=True)
    return path


def is_prepared(path: Path, **settings: object) -> bool:
    packed = path.with_name("packed")
    s = session(path, packed_weights=packed, **settings)
    expected = session(path, prepack=settings.get("prepack"), kernels=True)
    x = np.ones((2, 8), np.float32)
    assert (s.run(x)[0] == expected.run(x)[0]).all()
    assert repr(s) == repr(expected)
    return isinstance(s._model, PreparedModel)


def test_a_graph_belongs_to_its_settings_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SETTLED", 0)
    path = saved(tmp_path)
    assert [is_prepared(path) for _ in range(2)] == [False, True]
    assert [is_prepared(path, prepack=False) for _ in range(2)] == [False, True]
    assert is_prepared(path, threads=2)
    with monkeypatch.context() as other:
        other.setattr(prepared, "__version__", "0.0.0")
        assert [is_prepared(path) for _ in range(2)] == [False, True]
    assert [is_prepared(path) for _ in range(2)] == [False, True]
    for graph in tmp_path.glob("packed.*.onnx"):
        graph.write_bytes(graph.read_bytes()[:100])
    assert [is_prepared(path) for _ in range(2)] == [False, True]
    path.unlink()
    with pytest.raises(SessionError, match="no such file"):
        session(path, packed_weights=tmp_path / "packed")


def test_a_file_that_changes_now_is_not_recorded(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert [is_prepared(path) for _ in range(2)] == [False, False]
    assert not list(tmp_path.glob("packed.*.onnx"))


def test_a_recorded_session_profiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SETTLED", 0)
    path, packed = saved(tmp_path), tmp_path / "packed"
    session(path, packed_weights=packed)
    s = session(path, packed_weights=packed)
    assert isinstance(s._model, PreparedModel)
    with pytest.raises(SessionError, match="records no profile"):
        s.profile()
    assert s.model.graph.num_nodes()
    assert not isinstance(session(path, packed_weights=packed, profile=True)._model, PreparedModel)
