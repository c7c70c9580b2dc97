"""Files are written wholly or not at all."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files import saving
from coreai_onnx.model.files.loading import load_model
from coreai_onnx.model.files.mapped_tensors import ALIGNMENT
from coreai_onnx.model.files.saving import save_models, to_proto, write_text
from tests.support.small_models import counter_model, linear_model, linear_weights, parse
from tests.support.tolerances import assert_close


def save(model: ir.Model, path: Path, *, external_data: bool | None = None) -> tuple[Path, ...]:
    return save_models({path: model}, Path(f"{path}.data"), external_data=external_data)


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return ort.InferenceSession(str(path)).run(None, {"x": x})[0]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def expected(x: np.ndarray) -> np.ndarray:
    weights = linear_weights()
    return x @ weights["weight"] + weights["bias"]


X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


@pytest.mark.parametrize("external", [False, True])
def test_a_saved_model_runs_and_passes_the_checker(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "m.onnx"
    written = save(linear_model(), path, external_data=external)
    assert written == ((path, Path(f"{path}.data")) if external else (path,))
    assert sorted(files(tmp_path)) == sorted(file.name for file in written)
    onnx.checker.check_model(str(path), full_check=True)
    assert_close(run(path, X), expected(X))


def test_offsets_are_aligned_and_small_tensors_stay_in_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = linear_model(8, 999)  # the first tensor ends off the alignment
    save(model, path, external_data=True)
    proto = onnx.load(path, load_external_data=False)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    external = {
        name: {entry.key: entry.value for entry in tensor.external_data}
        for name, tensor in tensors.items()
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    assert sorted(external) == ["bias", "weight"]
    assert all(int(entry["offset"]) % ALIGNMENT == 0 for entry in external.values())
    assert max(int(entry["offset"]) for entry in external.values()) > 0
    loaded = onnx.load(path)
    for tensor in loaded.graph.initializer:
        if tensor.name in external:
            assert_close(onnx.numpy_helper.to_array(tensor), linear_weights(8, 999)[tensor.name])


@pytest.mark.parametrize("external", [False, True])
def test_same_model_same_bytes(tmp_path: Path, external: bool) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save(linear_model(), tmp_path / folder / "m.onnx", external_data=external)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_saving_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = linear_model()
    tensor = model.graph.initializers["weight"].const_value
    save(model, tmp_path / "m.onnx", external_data=True)
    assert model.graph.initializers["weight"].const_value is tensor


def test_a_model_can_be_saved_over_the_files_it_was_read_from(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=True)
    before = files(tmp_path)
    model = ir.load(path)
    assert isinstance(model.graph.initializers["weight"].const_value, ir.ExternalTensor)
    save(model, path, external_data=True)
    assert files(tmp_path) == before
    save(model, path, external_data=False)
    (tmp_path / "m.onnx.data").unlink()
    assert_close(run(path, X), expected(X))


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = linear_model()
    tied = ir.Value(name="tied", const_value=model.graph.initializers["weight"].const_value)
    model.graph.initializers.add(tied)
    save(model, tmp_path / "m.onnx", external_data=True)
    size = (tmp_path / "m.onnx.data").stat().st_size
    assert size == 8 * 64 * 4


def test_entrypoints_share_equal_weights(tmp_path: Path) -> None:
    models = {tmp_path / "m.a.onnx": linear_model(), tmp_path / "m.b.onnx": linear_model()}
    save_models(models, tmp_path / "m.onnx.data", external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 8 * 64 * 4
    for path in models:
        assert_close(run(path, X), expected(X))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "int4", "bool", "float16"])
def test_every_dtype_survives_a_data_file(tmp_path: Path, dtype: str) -> None:
    kind = ir.DataType[dtype.upper()]
    array = np.random.default_rng(0).integers(0, 2, (64, 65)).astype(kind.numpy())
    model = parse(f"""<ir_version: 11, opset_import: ["": 23]>
    agraph () => ({dtype}[64, 65] y) {{ y = Identity(w) }}""")
    weight = next(iter(model.graph)).inputs[0]
    weight.const_value = ir.Tensor(array, dtype=kind, name="w")
    model.graph.initializers.add(weight)
    path = tmp_path / "m.onnx"
    save(model, path, external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == weight.const_value.nbytes
    loaded = ir.load(path).graph.initializers["w"].const_value
    assert loaded.dtype == kind
    assert np.array_equal(loaded.numpy(), array)


def test_data_files_come_by_themselves_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "AUTO_EXTERNAL_BYTES", 2000)
    save(linear_model(), tmp_path / "large.onnx")
    save(counter_model(), tmp_path / "small.onnx")
    assert sorted(files(tmp_path)) == ["large.onnx", "large.onnx.data", "small.onnx"]


def test_what_protobuf_cannot_hold_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 2000)
    with pytest.raises(SaveError, match="external_data=True"):
        save(linear_model(), tmp_path / "m.onnx", external_data=False)
    with pytest.raises(SaveError, match="data file"):
        to_proto(linear_model())
    assert files(tmp_path) == {}


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.saving import save_models
from tests.support.small_models import linear_model
path, external, where, limit = Path(sys.argv[1]), sys.argv[2] == "True", *sys.argv[3:]
def killing(*args, **named):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
else:
    setattr(os, where, killing)
try:
    model = linear_model(64, 640, seed=1)
    save_models({path: model}, Path(f"{path}.data"), external_data=external)
except SaveError as error:
    print("SaveError", error)
"""


def in_a_child(repo: Path, path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Save another model there in a process that runs out of disk, or is killed at a system call.

    It imports little: a child that imports torch takes seconds.
    """
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(path), *map(str, words)],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("limit", [100, 50_000])
def test_a_full_disk_leaves_the_old_files_whole(
    tmp_path: Path, repo: Path, external: bool, limit: int
) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=external)
    before = files(tmp_path)
    result = in_a_child(repo, path, external, "limit", limit)
    assert result.stdout.startswith(f"SaveError cannot write {path}: File too large"), result
    assert "unchanged" in result.stdout
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("external", "where"), [(True, "open"), (True, "fsync"), (True, "link"), (False, "fsync")]
)
def test_a_process_that_is_killed_leaves_the_old_files_whole(
    tmp_path: Path, repo: Path, external: bool, where: str
) -> None:
    """At each step that touches the folder: new files have other names until the end."""
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=external)
    before = files(tmp_path)
    assert in_a_child(repo, path, external, where, 0).returncode == -signal.SIGKILL
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert all(name.startswith(".m.onnx") for name in after.keys() - before.keys())
    save(linear_model(seed=2), path, external_data=external)
    assert run(path, X).shape == (2, 64)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_save_that_is_interrupted_leaves_the_old_files_alone(
    tmp_path: Path, error: type[BaseException]
) -> None:
    class Interrupted(ir.Tensor):
        def numpy(self) -> np.ndarray:
            raise error

    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=True)
    before = files(tmp_path)
    model = linear_model(8, 999)
    tensor = Interrupted(np.zeros(999, np.float32), name="bias")  # after the weight
    model.graph.initializers["bias"].const_value = tensor
    with pytest.raises(error):
        save(model, path, external_data=True)
    assert files(tmp_path) == before


def test_a_tensor_that_cannot_be_read_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreadable(ir.Tensor):
        def numpy(self) -> np.ndarray:
            raise RuntimeError("lost")

    model = linear_model()
    tensor = Unreadable(np.zeros((8, 64), np.float32), name="weight")
    model.graph.initializers["weight"].const_value = tensor
    with pytest.raises(RuntimeError, match="lost"):
        save(model, tmp_path / "m.onnx", external_data=True)
    assert files(tmp_path) == {}
    assert model.graph.initializers["weight"].const_value is tensor


@pytest.mark.parametrize("links", [True, False])
def test_a_rename_that_fails_brings_the_first_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path, external_data=True)
    before = files(tmp_path)
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".m.onnx.") and Path(target) == path and not done:
            done.append(self)
            raise OSError(28, "No space left on device")
        return replace(self, target)

    def no_links(source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    done: list[Path] = []
    monkeypatch.setattr(Path, "replace", failing)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(SaveError, match="No space left on device"):
        save(linear_model(seed=1), path, external_data=True)
    assert done
    assert files(tmp_path) == before


def test_a_first_save_that_fails_at_the_rename_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").mkdir()
    with pytest.raises(SaveError):
        save(linear_model(), tmp_path / "m.onnx", external_data=True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save(linear_model(), path)
    before = files(tmp_path)
    if os.geteuid() == 0:  # root may write anywhere: let the system call say what it says to others

        def refused(*args: object) -> int:
            raise PermissionError(13, "Permission denied", str(args[0]))

        monkeypatch.setattr(os, "open", refused)
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(SaveError, match="Permission denied"):
        save(linear_model(seed=1), path)
    monkeypatch.undo()
    tmp_path.chmod(0o700)
    assert files(tmp_path) == before


def test_new_files_have_ordinary_permissions(tmp_path: Path) -> None:
    save(linear_model(), tmp_path / "m.onnx")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_data_file_is_written_tensor_by_tensor(tmp_path: Path) -> None:
    """Peak memory of saving 16 tensors of 8 MiB stays far below holding them twice."""
    model = parse('<ir_version: 10, opset_import: ["": 21]> agraph () => () {}')
    for index in range(16):
        array = np.full((1 << 21,), index, np.float32)
        value = ir.Value(name=f"w{index}", const_value=ir.Tensor(array, name=f"w{index}"))
        model.graph.initializers.add(value)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    save(model, tmp_path / "m.onnx", external_data=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (tmp_path / "m.onnx.data").stat().st_size == 16 << 23
    assert grown < 64 << 10, f"{grown} KiB more at the peak for 128 MiB of weights"


EDGE = 1 << 16


class Sparse(io.FileIO):
    """A file that skips the middle of large tensors, so that gigabytes of zeros cost nothing."""

    def write(self, data: bytes | memoryview) -> int:
        if len(data) < 4 * EDGE:
            return super().write(data)
        super().write(data[:EDGE])
        self.seek(len(data) - 2 * EDGE, os.SEEK_CUR)
        super().write(data[-EDGE:])
        return len(data)


def test_weights_beyond_four_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of more than 2 GiB, one across 4 GiB, and one behind it are read from there."""
    rows, width = 1 << 20, 600
    model = parse(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[n] ids) => (float[n, {width}] a, float[n, {width}] b, float[1000] c)
    {{ a = Gather(first, ids)  b = Gather(second, ids)  c = Identity(third) }}""")
    ends = {"first": (1, 2), "second": (3, 4)}
    arrays = {"third": np.arange(1000, dtype=np.float32)}
    for name, (start, end) in ends.items():
        arrays[name] = np.zeros((rows, width), np.float32)  # the system gives no page out yet
        arrays[name][0, 0], arrays[name][-1, -1] = start, end
    for name in (*ends, "third"):
        value = next(v for node in model.graph for v in node.inputs if v.name == name)
        value.const_value = ir.Tensor(arrays[name], name=name)
        model.graph.initializers.add(value)
    path = tmp_path / "m.onnx"
    monkeypatch.setattr(os, "fdopen", Sparse)
    assert save(model, path) == (path, tmp_path / "m.onnx.data")
    monkeypatch.undo()
    assert (tmp_path / "m.onnx.data").stat().st_size == 2 * rows * width * 4 + 4000 > 1 << 32
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = ort.InferenceSession(str(path), options)
    a, b, c = session.run(None, {"ids": np.array([0, rows // 2, rows - 1])})
    for found, (start, end) in zip((a, b), ends.values(), strict=True):
        expected = np.zeros((3, width), np.float32)
        expected[0, 0], expected[2, -1] = start, end
        assert_close(found, expected)
    assert_close(c, arrays["third"])
    loaded = load_model(path).graph.initializers["third"].const_value
    assert loaded.offset > 1 << 32
    assert_close(loaded.numpy(), arrays["third"])


def test_a_text_file_is_written_wholly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    write_text(path, "é\n")
    assert path.read_text(encoding="utf-8") == "é\n"
    with pytest.raises(SaveError, match="cannot write"):
        write_text(tmp_path / "nowhere" / "report.txt", "text")
    assert list(tmp_path.iterdir()) == [path]
