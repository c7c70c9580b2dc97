"""Whole programs: accuracy by method, mixed precision, tied heads, files, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import QuantizationError, SlowQuantizationWarning
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization import quantizer
from coreai_onnx.quantization.weights.scheme import METHODS
from tests.models.mixtures import MIXTURES
from tests.quantization.example_weights import heavy_tailed, linear
from tests.support.tolerances import assert_close


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Decoder(torch.nn.Module):
    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, 64)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.lm_head = torch.nn.Linear(64, 100, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


ARCHITECTURES = {architecture.name: architecture for architecture in MIXTURES}
IDS = torch.arange(12).reshape(2, 6) * 8
FEEDS = [{"ids": np.random.default_rng(i).integers(0, 100, (2, 6))} for i in range(20)]


def decoder(*, tied: bool = True, functions: bool = False, optimize: bool = True) -> OnnxProgram:
    torch.manual_seed(0)
    return coreai_onnx.convert(
        Decoder(tied=tied).eval(),
        (IDS,),
        externalize_modules=[Layer] if functions else None,
        optimize=optimize,
    )


def sqnr(program: OnnxProgram, reference: np.ndarray, *, kernels: bool = False) -> float:
    actual = program.run(IDS, kernels=kernels)[0]
    assert actual.dtype == reference.dtype
    return float(10 * np.log10(np.square(reference).sum() / np.square(actual - reference).sum()))


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return np.asarray(decoder().run(IDS)[0])


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
def test_bits_and_methods(functions: bool, optimize: bool, reference: np.ndarray) -> None:
    least = {(8, "rtn"): 40, (4, "gptq"): 17, (4, "awq"): 17, (4, "palette"): 17, (2, "hqq"): 4}
    for (bits, method), decibels in least.items():
        program = decoder(functions=functions, optimize=optimize)
        program.quantize(bits, method=method, calibration=FEEDS)
        assert sqnr(program, reference) > decibels, method
        assert not any(node.op_type in ("MatMul", "Gather") for node in program.model.graph)
        report = program.quantization_report
        assert report is not None
        assert len(report.layers) == 7 + optimize  # a transposed head
        assert report.bytes_after < report.bytes_before / (3 if bits == 8 else 4)


@pytest.mark.parametrize("functions", [False, True])
def test_rounded_activations(functions: bool, reference: np.ndarray) -> None:
    """8 bits of activations cost little beside 4 bits of weights, and are in the file."""
    program = decoder(functions=functions).quantize(rules={"lm_head": {"activation_bits": 0}})
    plain = sqnr(program, reference)
    program = decoder(functions=functions).quantize(activation_bits=8)
    rounded = program.run(IDS, kernels=False)[0]
    assert plain - 1 < sqnr(program, reference) < 60
    assert not np.array_equal(rounded, decoder(functions=functions).quantize().run(IDS)[0])
    products = [
        node
        for graph in (program.model.graph, *program.model.functions.values())
        for node in graph
        if node.op_type.startswith("linear_nbits")
    ]
    assert {node.attributes.get_int("activation_bits") for node in products} == {8}
    assert all("rounded" in node.op_type for node in products)
    # Not element by element: a difference of one ulp before it can change a rounded step.
    assert plain - 1 < sqnr(program, reference, kernels=True) < 60


def test_the_file_runs_after_the_passes(tmp_path: Path, reference: np.ndarray) -> None:
    program = decoder(functions=True).quantize()
    before = program.run(IDS, kernels=False)[0]
    assert_close(program.optimize().run(IDS, kernels=False)[0], before)
    program.save(tmp_path / "m.onnx")
    loaded = OnnxProgram.load(tmp_path / "m.onnx")
    assert_close(loaded.run(IDS, kernels=False)[0], before)
    assert (tmp_path / "m.onnx").stat().st_size < 60_000
    with pytest.raises(QuantizationError, match="the model is quantized already: 4 of its nodes"):
        loaded.quantize()


def test_mixed_precision(reference: np.ndarray) -> None:
    plain, mixed, kept = (decoder(functions=True, optimize=False) for _ in range(3))
    plain.quantize(3)
    mixed.quantize(3, rules={"layers.1.*": 8, "lm_head": {"bits": 8, "group_size": 16}})
    kept.quantize(3, skip=["layers.*"])
    assert sqnr(plain, reference) + 3 < sqnr(mixed, reference)
    report = mixed.quantization_report
    assert report is not None
    bits = {one.path: one.scheme.bits for one in report.layers}
    wide = {path for path, count in bits.items() if count == 8}
    assert wide == {"embed", "layers.1.up", "layers.1.down"}  # the head has the weight of embed
    assert len(bits) == 7
    assert [node.op_type for node in mixed.model.graph if "Layer" in node.op_type] == [
        "Layer",
        "Layer.2",
        "Layer",
    ]
    assert kept.quantization_report is not None
    assert [k.reason for k in kept.quantization_report.kept] == ["skipped by a pattern"] * 6


@pytest.mark.parametrize("optimize", [False, True])
def test_a_tied_head_is_stored_once(optimize: bool) -> None:
    tied, untied = (decoder(tied=t, optimize=optimize) for t in (True, False))
    for program in (tied, untied):
        program.quantize(method="gptq", calibration=FEEDS)
    sizes = [p.quantization_report.bytes_after for p in (untied, tied) if p.quantization_report]
    assert sizes[0] - sizes[1] == 100 * (32 + 2 * 2 + 2)
    layers = tied.quantization_report.layers if tied.quantization_report else ()
    methods = {one.path: one.scheme.method for one in layers}
    assert methods["embed"] == "hqq"  # rows that are looked up are not corrected for a product
    assert methods["layers.0.up"] == "gptq"


def test_entrypoints_share_their_weights() -> None:
    converter = coreai_onnx.TorchConverter()
    exported = torch.export.export(Decoder().eval(), (IDS,))
    for name in ("prefill", "decode"):
        converter.add_exported_program(exported, entrypoint_name=name)
    program = converter.to_onnx().quantize()
    graphs = [model.graph for model in program.models.values()]
    codes = [g.initializers["embed.weight.codes"].const_value.numpy() for g in graphs]
    assert np.array_equal(codes[0], codes[1])
    assert codes[0].ctypes.data == codes[1].ctypes.data
    assert set(program.quantization_reports) == {"prefill", "decode"}


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("method", ["hqq", "gptq"])
def test_experts_of_a_language_model(name: str, method: str, tmp_path: Path) -> None:
    """Weights of experts, ``[N, K]`` or ``[K, N]``, are in rules, the report and the file."""
    architecture = ARCHITECTURES[name]
    converter = coreai_onnx.TorchConverter()
    converter.add_exported_program(architecture.export(architecture.module()))
    program = converter.to_onnx()
    given = architecture.arguments(2, 9)
    reference = program.run(**given)[0]
    program.quantize(
        8,
        16,
        method=method,
        calibration=[architecture.arguments(2, 12 + i) for i in range(3)],
        rules={"*.0.mlp.experts": 4, "*.1.mlp.experts.down_proj": None},
        skip=["lm_head"],
    )
    report = program.quantization_report
    assert report is not None
    found = {one.path: one for one in report.layers}
    up, down = (found[f"model.layers.0.mlp.experts.{x}_proj"] for x in ("gate_up", "down"))
    assert up.scheme.bits == down.scheme.bits == 4
    assert up.shape == (4, 2 * down.shape[2], down.shape[1])
    assert str(list(up.shape)) in report.table()
    assert found["model.layers.1.mlp.experts.gate_up_proj"].scheme.bits == 8
    assert up.output_sqnr is not None
    assert not any(path.endswith("_bias") for path in found)
    kept = {one.path: one.reason for one in report.kept}
    assert kept["model.layers.1.mlp.experts.down_proj"] == "skipped by a pattern"
    calls = program.composites()
    assert sum(n for call, n in calls.items() if "gather_mm_nbits" in call) == 3
    actual = program.optimize().run(**given, kernels=False)[0]
    assert 10 * np.log10(np.square(reference).sum() / np.square(actual - reference).sum()) > 8
    program.save(tmp_path / "m.onnx")
    loaded = OnnxProgram.load(tmp_path / "m.onnx")
    assert_close(loaded.run(**given)[0], actual)
    with pytest.raises(QuantizationError, match="the model is quantized already"):
        loaded.quantize()


def test_an_error_leaves_the_program_unchanged() -> None:
    program = decoder()
    before = program.to_proto().SerializeToString(deterministic=True)
    bad = np.full((64, 96), np.nan, np.float32)
    for arguments, message in (
        ({"bits": 5}, "bits=5"),
        (
            {"rules": {"embed": {"group_size": 24}}},
            "embed: groups of 24 do not divide its 64 inputs",
        ),
        ({"method": "gptq"}, "method='gptq' needs calibration data\n  give calibration="),
        ({"method": "gptq", "calibration": []}, "there is no calibration data"),
        ({"method": "awq", "calibration": [{"ids": np.zeros((2, 6))}]}, "calibration call 1: "),
        ({"rules": {"head": 8}}, "the pattern 'head' matches no weight"),
        ({"skip": ["*"]}, "there is nothing to quantize: all 8 weights keep their dtype\n  embed"),
    ):
        with pytest.raises(QuantizationError, match=message):
            program.quantize(**arguments)
        assert program.to_proto().SerializeToString(deterministic=True) == before
        assert not program.quantization_reports
    (name,) = [n for n in program.model.graph.initializers if n.startswith("layers.2.up.weight")]
    program.model.graph.initializers[name].const_value = ir.tensor(bad, name=name)
    with pytest.raises(QuantizationError, match=r"layers.2.up: the weight 'layers.2.up.weight.T'"):
        program.quantize()
    assert not program.model.functions.get(("ai.coreai", "linear_nbits.zero_points", ""))


@pytest.mark.parametrize("method", ["hqq", "rtn"])
def test_hours_of_work_are_announced(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizer, "SAMPLE", -1.0)
    decoder().quantize(method=method)  # seconds
    monkeypatch.setattr(quantizer, "LONG", 0.0)
    with pytest.warns(SlowQuantizationWarning, match=r"0\.0 billion weights are still to") as found:
        decoder().quantize(method=method)
    assert len(found) == 1
    assert ('method="rtn" takes a seventh' in str(found[0].message)) == (method == "hqq")


def test_a_model_without_products() -> None:
    model = linear(heavy_tailed(4, 4))
    model.graph.node(1).op_type = "Mul"
    with pytest.raises(QuantizationError, match="the model has no MatMul, Gemm, gather_mm or"):
        OnnxProgram({"main": model}).quantize()


def test_every_method_is_in_the_documentation() -> None:
    text = Path("docs/quantization.md").read_text(encoding="utf-8")
    assert all(f'"{method}"' in text for method in METHODS)
