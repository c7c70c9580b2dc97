"""Each opset's files run in the oldest onnxruntime that takes the opset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.composites import GatedDeltaUpdate
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.opsets import OPSETS
from coreai_onnx.targets.releases import oldest_onnxruntime
from tests.compat import older_onnxruntime
from tests.support.tolerances import assert_close

pytestmark = pytest.mark.slow

RELEASES = {
    "1.18": "1.19.2",
    "1.21": "1.21.1",
    "1.23": "1.23.2",
    "1.24": "1.24.4",
    "1.25": "1.25.1",
}
"""A release of PyPI that runs beside the numpy of the tests; 1.18 needs an older numpy."""


def encoder() -> torch.nn.Module:
    """A convolution, attention, norms and a GELU: what changed its ONNX op between opsets."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, activation="gelu", norm_first=True
    )
    convolution = torch.nn.Sequential(
        torch.nn.Conv1d(8, 16, 3, padding=1), torch.nn.GroupNorm(4, 16), torch.nn.Hardswish()
    )
    return torch.nn.Sequential(convolution, Swap(), layer, torch.nn.LogSoftmax(-1)).eval()


class Attentions(torch.nn.Module):
    """Causal attention with grouped heads, then a gated delta rule."""

    def __init__(self) -> None:
        super().__init__()
        self.update = GatedDeltaUpdate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = x[:, :1]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            x, key, key, is_causal=True, enable_gqa=True
        )
        gate = torch.sigmoid(mixed.mean(-1))
        return self.update(mixed, x, mixed, -gate, gate)[0]


def attentions(
    x: torch.Tensor,
) -> tuple[torch.export.ExportedProgram, torch.Tensor, torch.Tensor]:
    model = Attentions().eval()
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {2: Dim("seq")}})
    return program, x, model(x).detach()


class Swap(torch.nn.Module):
    """Channels to the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


@pytest.fixture(scope="module")
def exported() -> tuple[torch.export.ExportedProgram, torch.Tensor, torch.Tensor]:
    model, x = encoder(), torch.randn(2, 8, 6)
    dims = {"input": {0: Dim("batch"), 2: Dim("time")}}
    return torch.export.export(model, (x,), dynamic_shapes=dims), x, model(x).detach()


def converted(program: torch.export.ExportedProgram, **options: object) -> OnnxProgram:
    converter = coreai_onnx.TorchConverter().add_exported_program(program)
    return converter.to_onnx(**options).optimize()


def opset_of(program: OnnxProgram) -> int:
    """The ``ai.onnx`` opset of a model, which its functions must not exceed."""
    proto = program.to_proto()
    imports = [proto.opset_import, *(function.opset_import for function in proto.functions)]
    versions = {entry.version for group in imports for entry in group if entry.domain == ""}
    return max(versions)


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_every_opset_runs_where_it_should(
    exported: tuple[torch.export.ExportedProgram, torch.Tensor, torch.Tensor],
    tmp_path: Path,
    release: str,
) -> None:
    program, x, expected = exported
    names = []
    for opset in (o for o in OPSETS if oldest_onnxruntime(o) == release):
        model = converted(program, opset_version=opset)
        assert opset_of(model) == opset
        model.save(tmp_path / f"opset{opset}.onnx")
        np.savez(tmp_path / f"opset{opset}.inputs.npz", input=x.numpy())
        names.append(f"opset{opset}")
    assert names
    results = older_onnxruntime.run(RELEASES[release], tmp_path, names, None)
    for name in names:
        assert_close(results[name], [expected], message=name)


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_onnxruntimes_own_ops_are_those_of_the_oldest(
    exported: tuple[torch.export.ExportedProgram, torch.Tensor, torch.Tensor],
    tmp_path: Path,
    release: str,
) -> None:
    """Attention with grouped heads, and a linear one, are ops of newer releases."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 6, 8)
    models = {"encoder": (*exported[:2], exported[2]), "attentions": attentions(x)}
    for name, (program, given, _) in models.items():
        converter = coreai_onnx.TorchConverter().add_exported_program(program)
        made = converter.to_onnx(minimum_onnxruntime=release).optimize(target="contrib")
        assert made.model.metadata_props["coreai.minimum_onnxruntime"] == release
        made.save(tmp_path / f"{name}.onnx")
        np.savez(
            tmp_path / f"{name}.inputs.npz", **{made.model.graph.inputs[0].name: given.numpy()}
        )
    results = older_onnxruntime.run(RELEASES[release], tmp_path, list(models), None)
    for name, (_, _, expected) in models.items():
        assert_close(results[name], [expected], message=name)


def test_the_oldest_onnxruntime_chooses_the_opset(
    exported: tuple[torch.export.ExportedProgram, torch.Tensor, torch.Tensor],
) -> None:
    assert opset_of(converted(exported[0], minimum_onnxruntime="1.20")) == 21
    assert opset_of(converted(exported[0], minimum_onnxruntime="1.31")) == 23
