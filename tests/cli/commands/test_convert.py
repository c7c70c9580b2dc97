"""``coreai-onnx convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx.cli import main
from coreai_onnx.cli.commands.convert import dynamic_shapes
from coreai_onnx.cli.options.subject import Subject
from coreai_onnx.cli.options.tensors import parse_dynamic
from coreai_onnx.errors import CommandError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.support.tolerances import assert_close

MODELS = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.relu(self.linear(x))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()
    def forward(self, x, y=None):
        z = self.second(self.first(x))
        return z if y is None else z + y

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eps, self.weight = 1e-5, torch.nn.Parameter(torch.ones(8))
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

torch.manual_seed(0)
net = Net().eval()
X = torch.randn(2, 8)
def one(): return net, (X,)
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)
    def forward(self, x):
        return self.second(self.first(x))
wide_net = Wide().eval()
def wide(): return wide_net, (torch.randn(2, 64),)
def normed(): return torch.nn.Sequential(Norm()), (X,)
def two(): return net, (X,), {"y": X}
def shaped(): return net, (X,), {}, ({0: torch.export.Dim("rows")},)
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    """Path of a file of factories."""
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return str(path)


def convert(models: str, factory: str, *words: str) -> Path:
    output = Path(models).with_name("net.onnx")
    assert main(["convert", f"{models}:{factory}", "-o", str(output), *words]) == 0
    return output


def test_the_road_from_the_command_line(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = convert(models, "one", "--dynamic", "x:0=batch[1..64]")
    out = capsys.readouterr().out
    assert "entrypoint main" in out
    assert f"wrote {path} (" in out
    assert [str(info) for info in session(path).inputs] == ["x: float32[batch, 8]"]
    assert main(["compare", str(path), f"{models}:one"]) == 0
    assert main(["run", str(path), "--dim", "batch=64"]) == 0
    assert main(["run", str(path), "--dim", "batch=65"]) == 2
    assert "(batch) is 65, expected between 1 and 64" in capsys.readouterr().err


def test_keyword_arguments_and_shared_dims(models: str) -> None:
    words = ("--dynamic", "x:0=batch", "--dynamic", "y:0=batch")
    opened = session(convert(models, "two", *words))
    assert [str(info) for info in opened.inputs] == [
        "x: float32[batch, 8]",
        "y: float32[batch, 8]",
    ]


def test_inputs_of_the_command_line(models: str) -> None:
    opened = session(convert(models, "net", "--input", "x=float32[5,8]", "--no-optimize"))
    assert [str(info) for info in opened.inputs] == ["x: float32[5, 8]"]


def test_dynamic_shapes_of_the_factory(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    opened = session(convert(models, "shaped"))
    assert str(opened.inputs[0]) == "x: float32[rows, 8]"
    words = ["convert", f"{models}:shaped", "-o", f"{models}.onnx", "--dynamic", "x:0=batch"]
    assert main(words) == 2
    assert "omit --dynamic" in capsys.readouterr().err


def test_opset_external_data_and_functions(models: str) -> None:
    words = ("--opset", "21", "--external-data", "--externalize", f"{models}:Block")
    path = convert(models, "one", *words)
    assert path.with_name("net.onnx.data").is_file()
    program = OnnxProgram.load(path)
    assert program.model.opset_imports[""] == 21
    assert program.composites() == {"ai.coreai.module::Block": 2}
    x = np.ones((2, 8), np.float32)
    plain = OnnxProgram.load(convert(models, "one"))
    assert_close(program.run(x)[0], plain.run(x)[0])


def test_named_composites(models: str) -> None:
    path = convert(models, "one", "--externalize", f"{models}:Block=my_block")
    assert OnnxProgram.load(path).composites() == {"ai.coreai.user::my_block": 2}


def test_known_blocks_are_reported(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = convert(models, "normed", "--externalize", "auto")
    assert OnnxProgram.load(path).composites() == {"ai.coreai::rms_norm": 1}
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["block", "composite", "places", "calls", "difference", "result"] in lines
    assert ["Norm", "rms_norm", "1", "1", "recognized"] in [
        [*line[:4], *line[5:]] for line in lines
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "/nowhere/m.onnx"], "cannot write /nowhere/m.onnx: there is no folder /nowhere"),
        (
            ["-o", "m.onnx", "--dynamic", "z:0=batch"],
            "--dynamic z: no such input; forward() takes x",
        ),
        (["-o", "m.onnx", "--dynamic", "x=batch"], "--dynamic x=batch: expected INPUT:AXIS=NAME"),
        (["-o", "m.onnx", "--externalize", "Block"], "'Block' is not of the form"),
        (["-o", "m.onnx", "--input", "x"], "--input x: expected NAME=VALUE"),
        (["-o", "m.onnx", "--opset", "7"], ""),
        (["-o", "m.onnx", "--input", "unknown=float32[2]"], ""),
    ],
)
def test_errors_write_nothing(
    words: list[str], message: str, models: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(Path(models).parent)
    assert main(["convert", f"{models}:one", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert "Traceback" not in captured.err
    assert not list(Path(models).parent.glob("*.onnx*"))
    assert not list(Path(models).parent.glob(".*.tmp"))


def test_exported_programs(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(models).with_name("net.pt2")
    rows = {"input": {0: torch.export.Dim("rows")}}
    linear = torch.nn.Linear(8, 8)
    exported = torch.export.export(linear, (torch.randn(2, 8),), dynamic_shapes=rows)
    torch.export.save(exported, path)
    output = path.with_suffix(".onnx")
    assert main(["convert", str(path), "-o", str(output)]) == 0
    assert [str(info) for info in session(output).inputs] == ["input: float32[input_dim_0, 8]"]
    assert main(["compare", str(output), str(path)]) == 0
    capsys.readouterr()
    for name, value in (
        ("--dynamic", "input:0=n"),
        ("--input", "input=float32[2,8]"),
        ("--externalize", "auto"),
    ):
        assert main(["convert", str(path), "-o", str(output), name, value]) == 2
        assert capsys.readouterr().err.startswith(f"error: {name} is for modules: ")


def test_a_factory_with_random_weights(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(models)
    path.write_text(f"{path.read_text()}\ndef drawn(): return Net(), (torch.randn(2, 8),)\n")
    output = convert(models, "drawn", "--seed", "3")
    assert main(["compare", str(output), f"{models}:drawn", "--seed", "3"]) == 0
    assert "note" not in capsys.readouterr().out
    assert main(["compare", str(output), f"{models}:drawn"]) == 1
    assert "makes random weights, here those of --seed 0" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["bfloat16[2,8]", "float8_e5m2[2,8]", "complex64[2,8]", "int8[8]"])
def test_example_inputs_of_every_dtype(models: str, text: str) -> None:
    path = Path(models)
    path.write_text(f"{path.read_text()}\nsame = torch.nn.Identity()\n")
    opened = session(convert(models, "same", "--input", f"input={text}", "--no-optimize"))
    assert opened.inputs[0].type_text.replace(" ", "") == text


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_modules_from_the_command_line(models: str) -> None:
    path = Path(models)
    code = "class Turn(torch.nn.Module):\n    def forward(self, z): return z * 2j, z.conj()\n"
    z = "def z(): return Turn(), (torch.randn(3, dtype=torch.complex64),)\n"
    path.write_text(f"{path.read_text()}\n{code}turn = Turn()\n{z}")
    output = convert(models, "z", "--dynamic", "z:0=n")
    assert main(["compare", str(output), f"{models}:z"]) == 0
    assert main(["run", str(output), "--dim", "n=5"]) == 0
    half = session(convert(models, "turn", "--input", "z=complex32[4]"))
    assert str(half.inputs[0]) == "z: complex32[4]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "z=float32[2]"], "unknown input 'z'; forward() takes x, y"),
        (["--input", "x=float32[2,8]"], "input 'x' is given twice, by position and by name"),
        (["--dynamic", "x:7=batch"], "--dynamic x:7=batch: the input has the axes 0 to 1"),
        (["--dynamic", "x:0=batch[5..3]"], "batch is from 5 to 3"),
        (["--dynamic", "x:0=batch[3..9]"], "the example has 2 there"),
    ],
)
def test_inputs_and_dims_that_are_not_there(
    models: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", f"{models}:one", "-o", f"{models}.onnx", *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["convert", f"{models}:net", "-o", f"{models}.onnx"]) == 2
    assert "missing input 'x'; forward() takes x, y" in capsys.readouterr().err


class Mixed(torch.nn.Module):
    def forward(self, a: Any, *rest: Any, flag: bool = True, x: Any = 0, **more: Any) -> Any:
        return a + sum(rest) + x + sum(more.values())


def shapes(*texts: str, args: int = 1, **kwargs: Any) -> Any:
    subject = Subject(Mixed(), (torch.ones(2, 3),) * args, kwargs)
    return dynamic_shapes(subject, kwargs, parse_dynamic(texts))


def test_dynamic_shapes_by_parameter() -> None:
    found = shapes("a:0=n,1=m[1..8]", "x:1=m", x=torch.ones(2, 3), flag=False)
    assert found["x"][1] is found["a"][1]
    assert found["flag"] is None
    assert (found["a"][1].__name__, found["a"][1].min, found["a"][1].max) == ("m", 1, 8)
    assert shapes("rest.1:0=n", args=3)["rest"][0] is None
    assert list(shapes("rest.1:0=n", args=3)["rest"][1]) == [0]


def test_dims_with_two_different_bounds() -> None:
    with pytest.raises(CommandError, match="n has two different bounds"):
        shapes("a:0=n[1..8]", "x:0=n[1..9]", x=torch.ones(2, 3))


def test_what_torch_export_cannot_make_dynamic() -> None:
    with pytest.raises(CommandError, match=r"takes as \*\*more: y, z"):
        shapes("a:0=n", y=torch.ones(2, 3), z=torch.ones(2, 3))


def test_dynamic_shapes_are_what_torch_export_takes() -> None:
    args, kwargs = (torch.ones(2, 3), torch.ones(2, 3)), {"x": torch.ones(2, 3)}
    texts = ["a:0=n", "rest.0:0=n", "x:0=n"]
    found = dynamic_shapes(Subject(Mixed(), args, kwargs), kwargs, parse_dynamic(texts))
    exported = torch.export.export(Mixed(), args, kwargs, dynamic_shapes=found)
    sizes = [node.meta["val"].shape[0] for node in exported.graph.nodes if node.op == "placeholder"]
    assert len(sizes) == 3
    assert len({str(size) for size in sizes}) == 1
    assert not isinstance(sizes[0], int)


def test_targets(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = convert(models, "one", "--target", "portable")
    assert "optimized for portable" in capsys.readouterr().out
    model = OnnxProgram.load(path).model
    assert (dict(model.opset_imports), model.ir_version) == ({"": 18}, 8)
    assert main(["compare", str(path), f"{models}:one"]) == 0


def test_what_the_passes_did_is_printed(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    convert(models, "one", "--passes", "pretranspose_weights,remove_dead_code")
    out = capsys.readouterr().out
    assert "nodes: 4 → 4 in 1 rounds" in out
    convert(models, "one", "--no-optimize")
    assert "nodes: " not in capsys.readouterr().out


@pytest.mark.parametrize("target", ["onnxruntime", "kernels", "contrib", "portable"])
def test_weights_of_few_bits_in_one_step(
    models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    out = tmp_path / "few.onnx"
    words = ["convert", f"{models}:wide", "-o", str(out), "--target", target]
    assert main([*words, "--bits", "8", "--rule", "second=4"]) == 0
    assert "8 bits, groups of 32, hqq" in capsys.readouterr().out
    ops = [node.op_type for node in OnnxProgram.load(out).model.graph]
    calls = ["linear_nbits.bits8_zero_points_bias", "linear_nbits.zero_points_bias"]
    widened = [calls[0], "Cast", "MatMulNBits"]  # of scales in float16
    assert ops == {"portable": ops, "contrib": widened}.get(target, calls)
    assert ("Cast" in ops) == (target in {"portable", "contrib"})
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    plain = tmp_path / "plain.onnx"
    assert main(["convert", f"{models}:wide", "-o", str(plain)]) == 0
    before, after = (session(path, kernels=False).run(x)[0] for path in (plain, out))
    assert 0 < np.abs(before - after).max() < 0.2
