"""The oldest onnxruntime of a model: the table of releases against what these register."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import SessionError, TargetError
from coreai_onnx.model.inventory import CONTRIB_DOMAIN, all_nodes
from coreai_onnx.passes import CONTRIB, TARGETS, Target, passes_for
from coreai_onnx.passes.contrib.decoder_attention import (
    cuda_decoder_attention,
    webgpu_decoder_attention,
)
from coreai_onnx.passes.contrib.few_bits import device_linear_nbits
from coreai_onnx.passes.contrib.linear_recurrences import contrib_linear_recurrences
from coreai_onnx.passes.targets import CONTRIB_OPS
from coreai_onnx.targets.contrib import contrib_since
from coreai_onnx.targets.oldest import check_oldest, node_since
from coreai_onnx.targets.opsets import chosen_opset
from coreai_onnx.targets.releases import OLDEST, OLDEST_TESTED, SINCE, release_of, text_of
from tests.support.tolerances import assert_close

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "first_releases.json").read_text())
MINIMA = [f"1.{minor}" for minor in range(18, 32)]


def model(call: str, opset: int = 21, inputs: str = "float[4, 2] x") -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        main ({inputs}) => (float[n] y) {{ y = {call} }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


def test_nothing_is_younger_than_the_table_says() -> None:
    """The table may name a later release, where an op gave wrong results before."""
    younger = {}
    for key, release in RECORDED.items():
        domain, op, form = key.split("/")
        oldest = OLDEST_TESTED if domain else OLDEST
        forms = ["", form]
        if form.startswith("input "):  # a node that has it has those before
            forms += [f"input {index}" for index in range(int(form.split()[1]))]
        known = max(SINCE.get((domain, op, one), oldest) for one in forms)
        if release_of(release) > known:
            younger[key] = f"{release}, and the table has {text_of(known)}"
    assert not younger


def test_standard_ops_of_the_table_are_recorded() -> None:
    table = {"/".join(key): text_of(since) for key, since in SINCE.items() if key[0] == ""}
    del table["/LayerNormalization/2 inputs"]  # a crash, which no registry shows
    assert table == {key: RECORDED.get(key) for key in table}


@pytest.mark.parametrize("target", TARGETS)
def test_no_pass_of_a_target_writes_a_younger_op(target: Target) -> None:
    for_providers = {
        *(webgpu_decoder_attention, cuda_decoder_attention),
        *(contrib_linear_recurrences, device_linear_nbits),
    }
    assert CONTRIB_OPS.keys() == {*CONTRIB, *for_providers}
    for minimum in MINIMA:
        for one in passes_for(target, minimum):
            for op, forms in CONTRIB_OPS.get(one, ()):
                assert contrib_since(op, forms) <= release_of(minimum), (minimum, one.__name__)


class Few(torch.nn.Module):
    """Attention with grouped heads, a mixture of dtypes, a norm of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys = x[:, :1]
        attend = torch.nn.functional.scaled_dot_product_attention
        causal = attend(x, keys, keys, is_causal=True, enable_gqa=True)
        open_ = attend(x, keys, keys, attn_mask=mask, enable_gqa=True)
        codes = (x * 8).to(torch.int8)
        sums = codes + codes, torch.where(codes > 0, codes, -codes), codes.amax(-1)
        waves = torch.cos(x.double()), torch.tril(codes.to(torch.int32))
        return self.norm(causal + open_), torch.topk(codes, 2).values, *sums, *waves


@pytest.fixture(scope="module")
def few() -> tuple[Few, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Few().eval(), (torch.randn(1, 2, 6, 8), torch.randn(6, 6))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("minimum", ["1.18", "1.21", "1.24", "1.28", "1.30", "1.31"])
def test_a_file_has_what_its_oldest_release_has(
    few: tuple[Few, tuple[torch.Tensor, ...]], target: Target, minimum: str
) -> None:
    module, arguments = few
    program = coreai_onnx.convert(
        module,
        arguments,
        optimize=False,
        opset_version=chosen_opset(None, minimum, target),
        minimum_onnxruntime=minimum,
    ).optimize(target=target)
    assert program.model.metadata_props["coreai.minimum_onnxruntime"] == minimum
    check_oldest(program.model, minimum)
    found = [since for node in all_nodes(program.model) if (since := node_since(node))]
    assert max(found) <= release_of(minimum)
    if minimum == "1.31" and target == "contrib":
        assert any(node.domain == CONTRIB_DOMAIN for node in all_nodes(program.model))
    outputs = program.run(*arguments, kernels=False)
    for actual, expected in zip(outputs, module(*arguments), strict=True):
        # The cosine of float64 is one of float32 where a release has no other.
        if expected.dtype == torch.float64:
            actual, expected = actual.astype(np.float32), expected.float()
        assert_close(actual, expected)


@pytest.mark.parametrize(
    ("call", "inputs", "minimum", "lacks"),
    [
        (
            "com.microsoft.QMoE (x, x, x, x, , x, x)",
            "float[n] x",
            "1.24",
            "QMoE of onnxruntime 1.25",
        ),
        ("Cos (x)", "double[n] x", "1.28", "Cos of onnxruntime 1.29"),
        ("Where (b, x, x)", "bool[n] b, uint32[n] x", "1.30", "Where of onnxruntime 1.31"),
        ("DeformConv (x, x, x)", "float[n] x", "1.24.4", "DeformConv of onnxruntime 1.25"),
    ],
)
def test_what_a_release_lacks_is_refused(call: str, inputs: str, minimum: str, lacks: str) -> None:
    one = model(call, inputs=inputs)
    with pytest.raises(TargetError, match=f"is {minimum}, and the model has\n  1x {lacks}"):
        coreai_onnx.OnnxProgram({"main": one}).optimize(minimum_onnxruntime=minimum)
    check_oldest(one, "1.31")


def test_axes_are_no_data() -> None:
    """ReduceMean takes int64 since 1.20, LayerNormalization is safe without a bias since 1.19."""
    mean = model("ReduceMean (x, axes)", inputs="float[4] x, int64[1] axes")
    check_oldest(mean, "1.18")
    mean.graph.inputs[0].type = None  # as in a function, whose constants alone have dtypes
    check_oldest(mean, "1.18")
    with pytest.raises(TargetError, match=r"1x ReduceMean of onnxruntime 1\.20"):
        check_oldest(model("ReduceMean (x)", inputs="int64[4] x"), "1.19")
    with pytest.raises(TargetError, match=r"1x LayerNormalization of onnxruntime 1\.19"):
        check_oldest(model("LayerNormalization (x, x)"), "1.18")
    check_oldest(model("LayerNormalization (x, x, x)"), "1.18")


def test_a_newer_opset_is_refused() -> None:
    with pytest.raises(TargetError, match=r"opset 23 needs onnxruntime 1\.23, but minimum_on"):
        check_oldest(model("Neg (x)", 23), "1.22")
    check_oldest(model("Neg (x)", 23), "1.22", opset=False)
    assert node_since(ir.node("Any", [], domain="another")) is None


def test_a_session_refuses_files_for_newer_releases(tmp_path: Path) -> None:
    path, one = tmp_path / "model.onnx", model("Neg (x)")
    one.metadata_props["coreai.minimum_onnxruntime"] = "1.99"
    ir.save(one, path)
    with pytest.raises(
        SessionError, match=r"^the model is for onnxruntime 1\.99 or later, and 1\."
    ):
        coreai_onnx.session(path)
    one.metadata_props["coreai.minimum_onnxruntime"] = "newer"
    ir.save(one, path)
    with pytest.raises(SessionError, match=r"must be a version like '1\.22', got 'newer'"):
        coreai_onnx.session(path)
