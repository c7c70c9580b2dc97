"""Execution providers as backends: the CPU everywhere, OpenVINO where its plugin is installed.

pip install onnxruntime-ep-openvino   runs the tests of OpenVINO
"""

from __future__ import annotations

import importlib.util
import warnings

import onnxruntime as ort
import pytest
import torch
from torch.export import Dim, export

from coreai_onnx import session
from coreai_onnx.delegation import ProviderPartitioner, delegates_of, to_edge
from coreai_onnx.errors import DelegationError, SessionError
from coreai_onnx.targets.providers import CPU
from tests.support.tolerances import assert_close

OPENVINO = "OpenVINOExecutionProvider"
# OpenVINO computes in bfloat16 on CPUs that can
FLOAT32 = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_ep_openvino") is None,
    reason="an opt-in test: pip install onnxruntime-ep-openvino",
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(self.norm(self.conv(x)).relu().mean((2, 3))).softmax(-1)


X = torch.randn(1, 3, 8, 8)


@pytest.fixture
def model() -> Model:
    return Model().eval()


def test_the_cpu_claims_everything_and_compiles_nothing(model: Model) -> None:
    edge = to_edge(export(model, (X,)))
    result = ProviderPartitioner(CPU).partition(edge.exported_program())
    assert not result.unsupported
    finished = to_edge(export(model, (X,))).to_backend(ProviderPartitioner(CPU)).finish()
    with warnings.catch_warnings(action="error"):
        for providers in ([], [CPU]):
            found = session(finished.onnx_program, providers=providers).run(X)[0]
            assert_close(found, model(X).detach())


def test_a_provider_that_is_not_installed() -> None:
    with pytest.raises(SessionError, match=r"Nobody is not available.*CPUExecutionProvider"):
        ProviderPartitioner("Nobody")


@pytest.fixture(scope="session")
def openvino() -> str:
    import onnxruntime_ep_openvino

    path = onnxruntime_ep_openvino.get_library_path()
    ort.register_execution_provider_library("openvino", path)
    return OPENVINO


@needs_openvino
def test_openvino_loads_the_part_that_it_compiled(openvino: str, model: Model, tmp_path) -> None:
    edge = to_edge(export(model, (X,))).to_backend(ProviderPartitioner(openvino, FLOAT32))
    (part,) = delegates_of(edge.exported_program())
    assert b"EPContext" in part.processed_bytes
    (path,) = edge.finish().save(tmp_path / "model.onnx")
    with warnings.catch_warnings(action="error"):
        for providers in ([], [openvino]):
            opened = session(path, kernels=False, providers=providers)
            assert_close(opened.run(X)[0], model(X).detach())


@needs_openvino
def test_openvino_takes_dynamic_sizes(openvino: str, model: Model) -> None:
    exported = export(model, (X.repeat(2, 1, 1, 1),), dynamic_shapes=({0: Dim("batch")},))
    program = to_edge(exported).to_backend(ProviderPartitioner(openvino, FLOAT32)).finish()
    opened = session(program.onnx_program, providers=[openvino])
    for batch in (1, 3):
        x = torch.randn(batch, 3, 8, 8)
        assert_close(opened.run(x)[0], model(x).detach())


class Sampled(torch.nn.Module):
    """OpenVINO has no GridSample of volumes."""

    def forward(self, x, grid):
        return torch.nn.functional.grid_sample(x.sin(), grid, align_corners=False).cos()


VOLUME = (torch.randn(1, 1, 4, 4, 4), torch.rand(1, 3, 3, 3, 3))


@needs_openvino
def test_what_openvino_rejects_stays_in_the_program(openvino: str) -> None:
    program = to_edge(export(Sampled(), VOLUME)).exported_program()
    result = ProviderPartitioner(openvino).partition(program)
    (reason,) = result.unsupported.values()
    assert "GridSample" in reason or "FrontEnd" in reason or "EP_FAIL" in reason
    assert len(result.partition_tags) == 2


@needs_openvino
def test_parts_that_openvino_cannot_load_run_on_their_bodies(openvino: str) -> None:
    # its plugin takes one compiled part in a session
    edge = to_edge(export(Sampled(), VOLUME)).to_backend(ProviderPartitioner(openvino, FLOAT32))
    assert len(delegates_of(edge.exported_program())) == 2
    with pytest.warns(RuntimeWarning, match="Multiple embedded native EPContext"):
        opened = session(edge.finish().onnx_program, providers=[openvino])
    assert_close(opened.run(*VOLUME)[0], Sampled()(*VOLUME))


@pytest.mark.parametrize("arguments", [(3,), ("CPUExecutionProvider", {"threads": 2})])
def test_names_and_settings_of_providers_are_strings(arguments) -> None:
    with pytest.raises(DelegationError, match=r"as strings, got [23]"):
        ProviderPartitioner(*arguments)
