"""Calls of ONNX models in converted models."""

from __future__ import annotations

import pytest
import torch
from onnx import parser

import coreai_onnx
from coreai_onnx import OnnxProgram, required_operators
from coreai_onnx.delegation import OnnxModule
from tests.delegation.foreign_models import RELU, example, parsed, with_functions
from tests.support.tolerances import assert_close


def test_equal_files_share_a_function_and_others_have_their_own() -> None:
    first, second = with_functions(), with_functions()
    weight = second.graph.initializer[0]
    weight.raw_data = b"".join(reversed([weight.raw_data[i : i + 4] for i in range(0, 2048, 4)]))
    other = parsed(*RELU)

    class Three(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = OnnxModule(first), OnnxModule(second)
            self.third = OnnxModule(other)

        def forward(self, x, scale):
            (a, _), (b, _) = self.first(x, scale), self.second(x, scale)
            return a, b, self.third(a[:, :4])

    module, args = Three(), example(3)
    converted = coreai_onnx.convert(module, args)
    assert [f.name for f in converted.model.functions.values()] == [
        "model.0.scaled",
        "model",
        "model.2",
    ]
    for found, expected in zip(converted.run(*args), module(*args), strict=True):
        assert_close(found, expected)


def test_a_model_inside_of_a_branch() -> None:
    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = OnnxModule(with_functions())

        def forward(self, x, scale):
            def run(x, scale):
                return self.inner(x, scale)[0].clone()

            def other(x, scale):
                return x.repeat(1, 2)

            return torch.cond(x.sum() > 0, run, other, (x, scale))

    module = Branch()
    x, scale = torch.ones(2, 16), torch.ones(2)
    converted = coreai_onnx.convert(module, (x, scale))
    for given in (x, -x):
        assert_close(converted.run(given, scale)[0], module(given, scale))


class Attention(torch.nn.Module):
    """An attention between two norms."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.RMSNorm(8), torch.nn.RMSNorm(8)
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        attended = torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=self.causal)
        return self.second(attended)


class Around(torch.nn.Module):
    """A file with an attention, between modules of the same composites."""

    def __init__(self, file: OnnxProgram, *, causal: bool) -> None:
        super().__init__()
        self.before, self.file = Attention(causal=causal), OnnxModule(file)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.file(self.before(x)) + x


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
def test_composites_of_a_file_run_on_kernels(causal: bool, optimize: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 8)
    inner = Attention(causal=True).eval()
    module = Around(coreai_onnx.convert(inner, (x,), optimize=optimize), causal=causal).eval()
    converted = coreai_onnx.convert(module, (x,), optimize=optimize)
    names = [key[:2] for key in converted.model.functions]
    attention = [name for domain, name in names if domain == "ai.coreai" and "attention" in name]
    assert len(attention) == (1 if causal else 2)
    assert names.count(("ai.coreai", "rms_norm")) == 1
    assert not [name for domain, name in names if domain == "ai.coreai.onnx" and "norm" in name]
    run = required_operators([converted], kernels=True, types=False)
    (line,) = (line for line in run.splitlines() if line.startswith("ai.coreai;1;"))
    assert set(line.split(";")[2].split(",")) == {"rms_norm", *attention}
    expected = inner(module.before(x)) + x
    for kernels in (False, True):
        assert_close(converted.run(x, kernels=kernels)[0], expected)


def test_a_body_for_which_no_name_is_left() -> None:
    composite = (
        "<domain: 'ai.coreai.user', opset_import: ['': 21]> twice (a) => (b) { b = @(a, a) }"
    )
    texts = [composite.replace("'", '"').replace("@", op) for op in ("Add", "Mul")]
    models = [
        parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21, "ai.coreai.user": 1]> '
            f"agraph (float[n] x) => (float[n] y) {{ y = ai.coreai.user.twice(x) }} {text}"
        )
        for text in (*texts, texts[0])
    ]

    class Three(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.files = torch.nn.ModuleList(map(OnnxModule, models))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [file(x) for file in self.files]

    x = torch.randn(3)
    converted = coreai_onnx.convert(Three(), (x,))
    assert {key[:2] for key in converted.model.functions} == {
        ("ai.coreai.user", "twice"),
        ("ai.coreai.onnx", "twice.2"),
        ("ai.coreai.onnx", "model"),
        ("ai.coreai.onnx", "model.2"),
    }
    for found, expected in zip(converted.run(x), (x + x, x * x, x + x), strict=True):
        assert_close(found, expected)
