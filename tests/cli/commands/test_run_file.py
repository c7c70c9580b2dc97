"""``coreai-onnx run``."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries import library
from tests.support.small_models import (
    add_model,
    counter_model,
    echo_model,
    endless_model,
    layers_model,
    linear_model,
    phase_model,
)
from tests.support.tolerances import assert_close


def saved(model: ir.Model, tmp_path: Path) -> str:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": model}).save(path)
    return str(path)


def test_random_inputs_with_dims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(add_model({"seq": {"min": 5, "max": None}}), tmp_path)
    assert main(["run", path, "--no-kernels"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ran on function bodies\n")
    assert "sum     float32[2, 5]" in out
    assert main(["run", path, "--dim", "batch=3", "--dim", "seq=7", "--no-kernels"]) == 0
    assert "float32[3, 7]" in capsys.readouterr().out


def test_the_seed_settles_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(add_model(), tmp_path)
    outputs = []
    for seed in ("1", "1", "2"):
        assert main(["run", path, "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_inputs_from_files_set_the_dims_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(add_model(), tmp_path)
    np.save(tmp_path / "ids.npy", np.full((1, 9), 5))
    save = tmp_path / "out.npz"
    words = ["run", path, "--input", f"ids={tmp_path / 'ids.npy'}", "--input", "mask=random"]
    assert main([*words, "--save", str(save)]) == 0
    assert f"outputs written to {save}" in capsys.readouterr().out
    with np.load(save) as loaded:
        assert loaded["sum"].shape == (1, 9)
        assert float(loaded["sum"].mean()) > 3


def test_inputs_of_a_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(add_model(), tmp_path)
    assert main(["run", path, "--input", "mask=float32[1,4]"]) == 0
    assert "float32[1, 4]" in capsys.readouterr().out


def test_states_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", saved(counter_model(), tmp_path)]) == 0
    row = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("state count"))
    assert row.split() == ["state", "count", "float32[1]", "2", "2", "2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "mask=float64[2,2]"], "input 'mask': dtype is float64, expected float32"),
        (["--input", "masc=random"], "--input masc: the model has no such input"),
        (["--input", "mask"], "--input mask: expected NAME=VALUE"),
        (["--input", "mask=nowhere.npy"], "cannot read nowhere.npy"),
        (["--dim", "batch=many"], "--dim batch=many: the size must be a number"),
        (["--timeout", "-1"], "timeout=-1.0; give a number of seconds"),
    ],
)
def test_errors(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", saved(add_model(), tmp_path), *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert "Traceback" not in captured.err


def test_kernels_that_are_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere")
    path = saved(layers_model(), tmp_path)
    assert main(["run", path, "--kernels"]) == 2
    assert "/nowhere" in capsys.readouterr().err
    assert main(["run", path]) == 0


def test_saved_outputs_are_those_of_the_program(tmp_path: Path) -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)
    np.save(tmp_path / "x.npy", x)
    words = [
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--no-kernels",
        "--save",
        str(tmp_path / "o.npz"),
    ]
    assert main(["run", saved(layers_model(), tmp_path), *words]) == 0
    with np.load(tmp_path / "o.npz") as loaded:
        assert_close(loaded["y"], OnnxProgram({"m": layers_model()}).run(x, kernels=False)["y"])


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(linear_model(), tmp_path)
    assert main(["run", path, "--save", str(tmp_path / "no" / "out.npz")]) == 2
    told = capsys.readouterr()
    assert (told.out, "there is no folder" in told.err) == ("", True)
    assert main(["run", path, "--save", "/dev/full"]) == 2
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "1025", "many"])
def test_the_number_of_threads_has_bounds(
    count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(add_model(), tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["run", path, "--threads", count])
    assert f"argument --threads: {count}" in capsys.readouterr().err.replace("'", "")
    assert main(["run", path, "--threads", "1"]) == 0


def test_a_run_ends_after_its_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", saved(endless_model(), tmp_path), "--timeout", "0.2"]) == 2
    assert "did not finish within 0.2 s" in capsys.readouterr().err


def test_a_write_that_fails_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, place = saved(linear_model(), tmp_path), tmp_path / "out.npz"
    place.write_bytes(b"earlier results")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fails)
    assert main(["run", path, "--save", str(place)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert place.read_bytes() == b"earlier results"
    assert {x.name for x in tmp_path.iterdir()} <= {"m.onnx", "m.onnx.data", "out.npz"}


@pytest.mark.parametrize("name", ["file", "args", "allow_pickle", "/layers.0/Add_output_0"])
def test_outputs_of_any_name_are_written(name: str, tmp_path: Path) -> None:
    model = linear_model()
    model.graph.outputs[0].name = name
    assert main(["run", saved(model, tmp_path), "--save", str(tmp_path / "out")]) == 0
    with np.load(tmp_path / "out.npz") as loaded:
        assert (loaded.files, loaded[name].shape) == ([name], (2, 64))


def test_an_unknown_dim_names_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(add_model(), tmp_path)
    assert main(["run", path, "--dim", "batch=2", "--dim", "foo=3"]) == 2
    message = "error: --dim foo: the inputs have no such dim; there are batch, seq\n"
    assert capsys.readouterr() == ("", message)
    assert main(["run", saved(echo_model("float", "2, 4"), tmp_path), "--dim", "batch=2"]) == 2
    assert "all dims are fixed" in capsys.readouterr().err


def test_dims_that_are_only_in_expressions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = echo_model("float", "n, 4")
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape(["2*seq", 4])
    path = saved(model, tmp_path)
    assert main(["run", path, "--dim", "seq=3"]) == 0
    assert "float32[6, 4]" in capsys.readouterr().out
    assert main(["run", path, "--dim", "2*seq=8"]) == 0
    assert "float32[8, 4]" in capsys.readouterr().out


def test_complex_inputs_and_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(phase_model(), tmp_path)
    z = np.array([3 - 4j, 1j], np.complex64)
    np.save(tmp_path / "z.npy", z)
    words = ["--input", f"z={tmp_path / 'z.npy'}", "--save", str(tmp_path / "out.npz")]
    assert main(["run", path, *words]) == 0
    with np.load(tmp_path / "out.npz") as loaded:
        assert_close(loaded["y"], z - np.complex64(1 + 2j))
    assert main(["run", path, "--dim", "n=5"]) == 0
    assert "y            complex64[5]" in capsys.readouterr().out
    assert main(["run", path, "--input", "z=float32[2,2]"]) == 2
    assert "dtype is float32, expected complex64" in capsys.readouterr().err


def test_a_provider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(add_model(), tmp_path)
    words = ["run", path, "--provider", "cpu", "--no-kernels"]
    assert main([*words, "--provider-option", "use_arena=1"]) == 0
    assert capsys.readouterr().out.startswith("ran on function bodies, CPUExecutionProvider\n")
    assert main(["run", path, "--provider", "cann"]) == 2
    assert capsys.readouterr().err == (
        f"error: CANNExecutionProvider is not available in onnxruntime {ort.__version__}, which "
        f"has {', '.join(sorted(ort.get_available_providers()))}; "
        "pip install onnxruntime-cann brings it, in place of this one\n"
    )
    assert main(["run", path, "--provider-option", "device_id=1"]) == 2
    assert capsys.readouterr().err == "error: --provider-option needs --provider\n"
