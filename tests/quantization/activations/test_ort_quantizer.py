"""Programs of torchao's PT2E: the same numbers, and integer kernels in a stock onnxruntime."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)
from torchao.testing.pt2e._xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)

from coreai_onnx import OnnxProgram, convert
from coreai_onnx.errors import StagingError
from coreai_onnx.quantization import OrtQuantizer
from tests.support.tolerances import assert_close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torchao's, of its observers
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
TOKENS = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(3))


class Cnn(nn.Module):
    """A residual block, poolings and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm2, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        y = F.relu6(self.norm2(self.second(x)))
        x = F.max_pool2d(torch.cat([x + y, y], dim=1), 2)[:, :16]
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Mlp(nn.Module):
    """Two linear layers, one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu").eval()


def quantized(model: nn.Module, x: torch.Tensor, quantizer: Any, *, training: bool = False) -> Any:
    prepare = prepare_qat_pt2e if training else prepare_pt2e
    prepared = prepare(torch.export.export(model, (x,)).module(), quantizer)
    for k in range(3):
        prepared(x * (1 - 0.1 * k))
    return convert_pt2e(prepared)


def not_strict(export: Any) -> Any:
    return lambda *args, strict=False, **options: export(*args, strict=False, **options)


def kernels(program: OnnxProgram, x: torch.Tensor, folder: Path) -> collections.Counter[str]:
    """Count the operators that a stock onnxruntime runs, by its profile."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 1
    options.profile_file_prefix = str(folder / "profile")
    file = folder / "model.onnx"
    program.save(file)
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: x.numpy()})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return collections.Counter(
        event["args"]["op_name"] for event in events if event["name"].endswith("kernel_time")
    )


def same(program: OnnxProgram, model: Any, x: torch.Tensor, *, rounded: bool = False) -> None:
    """Assert equal results; ``rounded`` if values between two steps are rounded differently."""
    (got,), wanted = program.run(x), model(x).detach()
    assert_close(got, wanted, exception="quantized_step" if rounded else None)


def has_integer_weights(program: OnnxProgram, count: int, dtype: str = "INT8") -> bool:
    """Whether matrices and kernels are stored as bytes."""
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    large = [w for w in weights if w is not None and w.size > 150]
    return len(large) == count and all(w.dtype.name == dtype for w in large)


def raw_and_decomposed(model: Any, x: torch.Tensor) -> list[OnnxProgram]:
    exported = torch.export.export(model, (x,))
    return [convert(exported), convert(exported.run_decompositions())]


@pytest.mark.parametrize("training", [False, True])
def test_a_cnn_stays_on_integers(
    training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first quantization is left: nothing is computed in float32."""
    torch.manual_seed(0)
    # Through Dynamo, torchao's twenty patterns of norms take five times as long.
    monkeypatch.setattr(torch.export, "export", not_strict(torch.export.export))
    model = Cnn().train(training)
    made = quantized(model, IMAGE, OrtQuantizer(training=training), training=training)
    program, decomposed = raw_and_decomposed(made, IMAGE)
    ran = kernels(program, IMAGE, tmp_path)
    assert ran["QLinearConv"] == 2
    assert {"QLinearAdd", "QLinearConcat", "QLinearGlobalAveragePool", "QGemm"} <= set(ran)
    assert not {"Conv", "FusedConv", "Gemm", "Add", "Relu", "Clip"} & set(ran)
    assert ran["QuantizeLinear"] == 1
    assert has_integer_weights(program, 3)
    if not training:  # after it, the exported program normalizes with the statistics of the batch
        same(program, made, IMAGE)
        same(decomposed, made, IMAGE, rounded=True)
        error = (made(IMAGE) - model(IMAGE)).abs().max() / model(IMAGE).abs().max()
        assert error < 0.03


@pytest.mark.parametrize("x", [ROWS, TOKENS])
@pytest.mark.parametrize(
    ("dynamic", "op"),
    [(True, "DynamicQuantizeMatMul"), (False, "QGemm")],
)
@pytest.mark.parametrize("reduce_range", [True, False])
def test_linear_layers(
    reduce_range: bool, dynamic: bool, op: str, x: torch.Tensor, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made = quantized(Mlp().eval(), x, OrtQuantizer(dynamic=dynamic, reduce_range=reduce_range))
    for program in raw_and_decomposed(made, x):
        ran = kernels(program, x, tmp_path)
        assert ran[op] + ran["MatMulIntegerToFloat"] == 2
        assert not {"MatMul", "Gemm", "FusedGemm"} & set(ran)
        assert has_integer_weights(program, 2, "INT8" if reduce_range else "UINT8")
        same(program, made, x)


@pytest.mark.parametrize("dynamic", [True, False])
def test_an_encoder_computes_its_products_on_integers(dynamic: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = encoder()
    made = quantized(model, TOKENS, OrtQuantizer(dynamic=dynamic))
    program = convert(torch.export.export(made, (TOKENS,)))
    ran = kernels(program, TOKENS, tmp_path)
    integer = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "MatMulInteger")
    assert sum(ran[name] for name in integer) == 4
    assert not {"MatMul", "Gemm", "FusedGemm"} & set(ran)
    same(program, made, TOKENS, rounded=True)
    cosine = F.cosine_similarity(made(TOKENS), model(TOKENS), dim=-1)
    assert cosine.min() > 0.999


@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("target", ["onnxruntime", "portable", "contrib", "kernels"])
def test_xnnpacks_quantizer(channels: bool, target: Any, tmp_path: Path) -> None:
    """Its int8 activations become uint8, for which onnxruntime has kernels on x86."""
    torch.manual_seed(0)
    config = get_symmetric_quantization_config(is_per_channel=channels)
    made = quantized(Cnn().eval(), IMAGE, XNNPACKQuantizer().set_global(config))
    program = convert(torch.export.export(made, (IMAGE,)), optimize=False).optimize(target=target)
    same(program, made, IMAGE)
    ran = kernels(program, IMAGE, tmp_path)
    assert (ran["QLinearConv"], ran["QGemm"]) == (2, 1)
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm"} & set(ran)


def test_xnnpacks_dynamic_quantizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = get_symmetric_quantization_config(is_dynamic=True, is_per_channel=True)
    made = quantized(Mlp().eval(), ROWS, XNNPACKQuantizer().set_global(config))
    for program in raw_and_decomposed(made, ROWS):
        same(program, made, ROWS)
        assert kernels(program, ROWS, tmp_path)["MatMulIntegerToFloat"] == 2
        assert has_integer_weights(program, 2, "UINT8")


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_quantizer_of_inductor(dynamic: bool) -> None:
    # its import compiles scripts, which warns
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    torch.manual_seed(0)
    config = get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    model, x = (Mlp().eval(), ROWS) if dynamic else (Cnn().eval(), IMAGE)
    made = quantized(model, x, X86InductorQuantizer().set_global(config))
    for program in raw_and_decomposed(made, x):
        same(program, made, x, rounded=not dynamic)


@pytest.mark.parametrize("shape", [(4, 32), (2, 3, 32), (2, 4, 20)])
def test_a_bias_that_does_not_fit_into_int32(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv1d(4, 8, 3) if shape[-1] == 20 else nn.Linear(32, 16)
    with torch.no_grad():
        layer.bias.copy_(torch.linspace(0.1, 1, len(layer.bias)))
    x = torch.randn(shape) * 1e-7
    made = quantized(nn.Sequential(layer, nn.ReLU()).eval(), x, OrtQuantizer())
    program = convert(torch.export.export(made, (x,)))
    session = onnxruntime.InferenceSession(program.to_proto().SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    error = torch.from_numpy(got) - torch.relu(layer(x))
    assert error.abs().max() < 0.003  # one step of the result is 1 / 255


def test_a_skipped_convolution_keeps_its_weights() -> None:
    """onnxruntime would give all channels of its weight one scale."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv1d(8, 8, 3) for _ in range(3))).eval()
    with torch.no_grad():
        model[1].weight *= torch.logspace(-4, 0, 8)[:, None, None]
        model[1].bias.zero_()
        model[2].weight *= torch.logspace(4, 0, 8)[None, :, None]
    x = torch.randn(2, 8, 40)
    made = quantized(model, x, OrtQuantizer(skip=["1"]))
    program = convert(torch.export.export(made, (x,)))
    session = onnxruntime.InferenceSession(program.to_proto().SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    wanted = made(x).detach()
    assert (torch.from_numpy(got) - wanted).abs().max() / wanted.abs().max() < 0.01


def test_modules_stay_in_float32() -> None:
    made = quantized(Mlp().eval(), ROWS, OrtQuantizer(skip=["down"]))
    program = convert(torch.export.export(made, (ROWS,)))
    same(program, made, ROWS)
    assert sum(node.op_type == "QuantizeLinear" for node in program.model.graph) == 1


class Given(Quantizer):
    """Linear layers with the given specs of weights, and perhaps of activations."""

    def __init__(self, weight: QuantizationSpec, rows: QuantizationSpec | None = None) -> None:
        super().__init__()
        self.weight, self.rows = weight, rows

    def annotate(self, model: Any) -> Any:
        for node in model.graph.nodes:
            if node.target is torch.ops.aten.linear.default:
                specs = {node.args[1]: self.weight}
                if self.rows is not None:
                    specs[node.args[0]] = self.rows
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=specs, _annotated=True
                )
        return model

    def validate(self, model: Any) -> None:
        pass


def weight_spec(axis: int | None, low: int = -127) -> QuantizationSpec:
    scheme = torch.per_channel_symmetric if axis is not None else torch.per_tensor_symmetric
    observer = MinMaxObserver if axis is None else PerChannelMinMaxObserver
    return QuantizationSpec(torch.int8, observer, low, -low, scheme, axis)


def row_spec(dtype: torch.dtype, low: int, high: int) -> QuantizationSpec:
    observer = MinMaxObserver.with_args(eps=2**-30)
    return QuantizationSpec(dtype, observer, low, high, torch.per_tensor_affine)


ROW_SPECS = [
    None,
    row_spec(torch.int16, -32768, 32767),
    row_spec(torch.int32, 0, 65535),
    row_spec(torch.uint8, 0, 255),
]


@pytest.mark.parametrize("rows", ROW_SPECS, ids=["weights", "int16", "int32", "uint8"])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("x", [ROWS, TOKENS])
def test_a_stock_onnxruntime_rounds_only_what_the_program_rounds(
    x: torch.Tensor, axis: int | None, rows: QuantizationSpec | None
) -> None:
    """Scales of inputs and weights alone are not for its integer products."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 48)).eval()
    made = quantized(model, x, Given(weight_spec(axis, -63), rows))
    program = convert(torch.export.export(made, (x,)))
    session = onnxruntime.InferenceSession(program.to_proto().SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_close(got, made(x).detach(), exception=None if rows is None else "quantized_step")
    same(program, made, x, rounded=rows is not None)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(StagingError, match="no module of the program: dwn"):
        quantized(Mlp().eval(), ROWS, OrtQuantizer(skip=["dwn"]))


def test_seven_bits() -> None:
    made = quantized(Mlp().eval(), ROWS, OrtQuantizer())
    weights = [t for t in made.state_dict().values() if t.dtype == torch.int8]
    assert max(int(w.abs().max()) for w in weights) == 63


def test_without_torchao() -> None:
    code = (
        "import sys; sys.modules['torchao'] = None\n"
        "from coreai_onnx.errors import StagingError\n"
        "try:\n    import coreai_onnx.quantization.activations.ort_quantizer\n"
        "except StagingError as error:\n    print(error)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install --no-deps torchao" in made.stdout
