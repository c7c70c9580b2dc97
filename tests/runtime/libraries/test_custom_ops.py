"""Custom op libraries: models with opaque nodes, and libraries that are missing or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx import OnnxProgram, compare, ops_library_path, session
from coreai_onnx.cli import main
from coreai_onnx.errors import SessionError
from coreai_onnx.export.externalize.modules import ExternalizeSpec
from tests.support import my_ops
from tests.support.tolerances import assert_close


class Scaled(torch.nn.Module):
    """Two opaque nodes between ops that passes can change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = my_ops.scale(torch.relu(x) + 0.0, 3.0)
        return my_ops.scale(y.transpose(0, 1).transpose(0, 1), -0.5) * 1.0


class Counted(torch.nn.Module):
    """An op with two results, one of a size that depends on the data."""

    def forward(self, x: torch.Tensor) -> Any:
        kept, count = my_ops.nonzeros(x)
        return kept * 2, count + 1


class Outer(torch.nn.Module):
    """An opaque node in the function of a submodule only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def converted(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> OnnxProgram:
    """Return the optimized program, with a dynamic batch."""
    dim = torch.export.Dim("batch")

    def export(module: torch.nn.Module) -> Any:
        return torch.export.export(module, (x,), dynamic_shapes={"x": {0: dim}})

    staged = my_ops.converter().add_pytorch_module(model, export_fn=export, **options)
    return staged.to_onnx().optimize()


def test_opaque_nodes_keep_type_and_domain_through_the_passes(tmp_path: Path) -> None:
    model, x = Scaled(), torch.randn(2, 3)
    program = converted(model, x)
    nodes = [n for n in program.model.graph if n.domain == "my.ops"]
    assert [n.op_type for n in nodes] == ["Scale", "Scale"]
    assert [n.attributes["factor"].as_float() for n in nodes] == [3.0, -0.5]
    shape = nodes[0].outputs[0].shape
    assert shape is not None
    assert [str(d) for d in shape] == ["batch", "3"]
    assert str(nodes[0].outputs[0].dtype) == "FLOAT"
    assert program.model.opset_imports["my.ops"] == 1
    program.save(tmp_path / "m.onnx")
    opened = session(tmp_path / "m.onnx", custom_ops=[my_ops.library()])
    for size in (2, 5):
        y = torch.randn(size, 3)
        assert_close(opened.run(y)[0], model(y))


def test_several_outputs_from_the_fake_kernel() -> None:
    x = torch.tensor([[0.0, 1.5], [2.0, 0.0]])
    program = converted(Counted(), x)
    opened = session(program, custom_ops=[str(my_ops.library())])
    kept, count = opened.run(x)
    assert_close(kept, torch.tensor([3.0, 4.0]))
    assert_close(count, torch.tensor(3))


@pytest.mark.parametrize("name", [None, "scaled"])
def test_an_opaque_node_in_a_function(name: str | None) -> None:
    model, x = Outer(), torch.randn(2, 3)
    program = converted(model, x, externalize_modules=[ExternalizeSpec(Scaled, name)])
    assert len(program.model.functions) == 1
    assert not any(n.domain == "my.ops" for n in program.model.graph)
    opened = session(program, custom_ops=[my_ops.library()])
    assert_close(opened.run(x)[0], model(x))


def test_a_program_runs_and_is_compared_with_a_library() -> None:
    model, x = Scaled(), torch.randn(2, 3)
    program, libraries = converted(model, x), [my_ops.library()]
    assert_close(program.run(x, custom_ops=libraries)[0], model(x))
    assert program.session(custom_ops=libraries) is program.session(custom_ops=libraries)
    with pytest.raises(SessionError, match=r"my\.ops::Scale, which a custom op library implements"):
        program.run(x)
    compare(program, model, (x,), custom_ops=libraries, values=True).assert_close()
    compare(program, program, custom_ops=libraries).assert_close()


@pytest.mark.usefixtures("kernels")
def test_a_library_beside_the_kernels() -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.RMSNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return my_ops.scale(self.norm(x), 2.0)

    model, x = Normed().eval(), torch.randn(2, 8)
    opened = session(converted(model, x), kernels=True, custom_ops=[my_ops.library()])
    assert opened.kernels
    assert_close(opened.run(x)[0], model(x))


def test_an_absent_library_is_named(tmp_path: Path) -> None:
    program = converted(Scaled(), torch.randn(2, 3))
    with pytest.raises(SessionError) as caught:
        session(program)
    assert "the model calls my.ops::Scale" in str(caught.value)
    assert "custom_ops=" in str(caught.value)
    with pytest.raises(SessionError, match=r"nowhere\.so: no such custom op library"):
        session(program, custom_ops=[tmp_path / "nowhere.so"])
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(SessionError, match=r"cannot register the custom ops in .*broken\.so"):
        session(program, custom_ops=[broken])
    with pytest.raises(SessionError, match="give a list of libraries"):
        session(program, custom_ops=str(broken))
    with pytest.raises(SessionError, match="3 is not a custom op library"):
        session(program, custom_ops=[3])  # type: ignore[list-item]  # what a user may give


@pytest.mark.usefixtures("kernels")
def test_a_library_without_the_op() -> None:
    program = converted(Scaled(), torch.randn(2, 3))
    with pytest.raises(SessionError, match=r"the model calls my\.ops::Scale"):
        session(program, kernels=False, custom_ops=[ops_library_path()])


def test_the_command_line_loads_a_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "m.onnx")
    converted(Scaled(), torch.randn(2, 3)).save(path)
    assert main(["run", path, "--library", str(my_ops.library())]) == 0
    assert "float32[2, 3]" in capsys.readouterr().out
    assert main(["run", path]) == 2
    assert "--library" in capsys.readouterr().err
