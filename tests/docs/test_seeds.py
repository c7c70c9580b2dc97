"""The snippets of the two documents the API was taken from run with only the package name changed.

``WORKFLOWS`` are those of "Conversion Workflows", ``SPEC`` those of "ExternalizeSpec", in their
order and with the indentation that their text form lost. Names that a document leaves to the
reader (``model``, ``sample``) are given by the test. After each snippet the program it made is
held against torch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from coreai_onnx import ExternalizeSpec, TorchConverter, get_decomp_table
from coreai_onnx.composite_ops import SDPA, RMSNormImpl
from tests.support.tolerances import assert_close

FROM_EXPORTED_PROGRAM = """
import torch
import torch.nn as nn
from coreai_onnx import TorchConverter, get_decomp_table

class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 5)

    def forward(self, x):
        return self.linear(x)

model = MyModel().eval()
ep = torch.export.export(model, args=(torch.randn(1, 10),))
ep = ep.run_decompositions(get_decomp_table())

converter = TorchConverter().add_exported_program(ep)
coreai_program = converter.to_coreai()
coreai_program.optimize()
"""

FROM_MODULE = """
import torch
import coreai_onnx

model = MyModel().eval()
sample = (torch.randn(1, 10),)

converter = TorchConverter().add_pytorch_module(
    model,
    export_fn=lambda m: torch.export.export(m, args=sample).run_decompositions(
        coreai_onnx.get_decomp_table()
    ),
)
coreai_program = converter.to_coreai()
coreai_program.optimize()
"""

COMPOSITE_EXTERNALIZATION = '''
import torch
import torch.nn as nn
import coreai_onnx
from coreai_onnx import ExternalizeSpec, TorchConverter
from coreai_onnx.composite_ops import RMSNormImpl

class RMSNorm(nn.Module):
    """Convenience wrapper that owns the learnable scale parameter."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.norm = RMSNormImpl(eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x, self.weight)

class ModelWithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(dim=10)
        self.linear = nn.Linear(10, 5)

    def forward(self, x):
        return self.linear(self.norm(x))

model = ModelWithNorm().eval()
sample = (torch.randn(1, 10),)

converter = TorchConverter().add_pytorch_module(
    model,
    export_fn=lambda m: torch.export.export(m, args=sample).run_decompositions(
        coreai_onnx.get_decomp_table()
    ),
    externalize_modules=[
        ExternalizeSpec(
            target_class=RMSNormImpl,
            composite_op_name="rms_norm",
            composite_attrs=["axes", "eps"],
        )
    ],
)
coreai_program = converter.to_coreai()
coreai_program.optimize()
'''

SPEC_IMPORT = """
from coreai_onnx import ExternalizeSpec
"""

SPEC_USAGE = """
spec = ExternalizeSpec(
    target_class=RMSNormImpl,
    composite_op_name="rms_norm",
    composite_attrs=["axes", "eps", "version"],
)
"""

SPEC_EXAMPLE = """
from coreai_onnx import TorchConverter, ExternalizeSpec
from coreai_onnx.composite_ops import SDPA

converter = TorchConverter().add_pytorch_module(
    model,
    export_fn=lambda m: torch.export.export(m, args=sample).run_decompositions(
        coreai_onnx.get_decomp_table()
    ),
    externalize_modules=[
        ExternalizeSpec(
            target_class=SDPA,
            composite_op_name="scaled_dot_product_attention",
            composite_attrs=["scale", "is_causal", "window_size"],
        )
    ],
)
coreai_program = converter.to_coreai()
coreai_program.optimize()
"""


def play(*snippets: str, **given: Any) -> dict[str, Any]:
    """Run snippets one after the other in one namespace, as a reader would paste them."""
    namespace: dict[str, Any] = {"__name__": "snippet", **given}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"<snippet {number}>", "exec"), namespace)
    return namespace


def assert_agrees(namespace: dict[str, Any], *inputs: torch.Tensor) -> None:
    """The snippet's program computes what the snippet's model computes."""
    outputs = namespace["coreai_program"].run(*inputs, kernels=False)
    assert_close(list(outputs), [namespace["model"](*inputs)])


def composites(namespace: dict[str, Any]) -> dict[str, int]:
    return namespace["coreai_program"].composites()


def attributes_of(namespace: dict[str, Any], op_type: str) -> dict[str, Any]:
    """Attributes of the only call of a composite, at the top level of the graph."""
    nodes = namespace["coreai_program"].model.graph
    (node,) = [n for n in nodes if n.domain == "ai.coreai" and n.op_type == op_type]
    return {name: attribute.value for name, attribute in node.attributes.items()}


def test_from_an_exported_program() -> None:
    namespace = play(FROM_EXPORTED_PROGRAM)
    assert_agrees(namespace, torch.randn(1, 10))
    assert composites(namespace) == {}


def test_from_a_module() -> None:
    namespace = play(FROM_EXPORTED_PROGRAM, FROM_MODULE)
    assert_agrees(namespace, *namespace["sample"])


def test_both_ways_give_the_same_file() -> None:
    """The document: equivalent to add_exported_program() with the result of export_fn."""
    namespace = play(FROM_EXPORTED_PROGRAM, FROM_MODULE)
    sample, model = namespace["sample"], namespace["model"]
    ep = torch.export.export(model, args=sample).run_decompositions(get_decomp_table())
    other = TorchConverter().add_exported_program(ep).to_coreai().optimize()
    ours = namespace["coreai_program"].to_proto().SerializeToString(deterministic=True)
    assert ours == other.to_proto().SerializeToString(deterministic=True)


def test_composite_externalization() -> None:
    namespace = play(COMPOSITE_EXTERNALIZATION)
    assert_agrees(namespace, *namespace["sample"])
    assert composites(namespace) == {"ai.coreai::rms_norm": 1}
    attributes = attributes_of(namespace, "rms_norm")
    assert attributes["eps"] == pytest.approx(1e-5)
    assert "axes" in attributes


def test_composite_externalization_runs_on_the_kernel(kernels: object) -> None:
    namespace = play(COMPOSITE_EXTERNALIZATION)
    outputs = namespace["coreai_program"].run(*namespace["sample"], kernels=True)
    assert_close(list(outputs), [namespace["model"](*namespace["sample"])])


def test_the_convenience_wrapper_of_the_package() -> None:
    """The note: use composite_ops.RMSNorm, the target class is still RMSNormImpl."""
    wrapper = COMPOSITE_EXTERNALIZATION.replace("class RMSNorm(", "class Unused(").replace(
        "import RMSNormImpl", "import RMSNorm, RMSNormImpl"
    )
    namespace = play(wrapper)
    assert_agrees(namespace, *namespace["sample"])
    assert composites(namespace) == {"ai.coreai::rms_norm": 1}


def test_a_bare_class_becomes_a_plain_function() -> None:
    """The last paragraph: a standalone graph with no composite-op metadata."""
    namespace = play(FROM_EXPORTED_PROGRAM)
    model, sample = namespace["model"], (torch.randn(1, 10),)
    program = (
        TorchConverter()
        .add_pytorch_module(
            model,
            export_fn=lambda m: torch.export.export(m, args=sample).run_decompositions(
                get_decomp_table()
            ),
            externalize_modules=[nn.Linear],
        )
        .to_coreai()
    )
    assert [domain for domain, *_ in program.model.functions] == ["ai.coreai.module"]
    assert not any(name.startswith("ai.coreai::") for name in program.composites())
    assert_close(list(program.run(*sample, kernels=False)), [model(*sample)])


def test_spec_declaration() -> None:
    """Three fields, two of them optional, in the order of the document; ours are after them."""
    namespace = play(SPEC_IMPORT)
    fields = dataclasses.fields(namespace["ExternalizeSpec"])
    names = [field.name for field in fields]
    assert names[:3] == ["target_class", "composite_op_name", "composite_attrs"]
    assert fields[0].default is dataclasses.MISSING
    assert all(field.default is None for field in fields[1:])


def test_spec_usage() -> None:
    spec = play(SPEC_IMPORT, SPEC_USAGE, RMSNormImpl=RMSNormImpl)["spec"]
    assert spec.target_class is RMSNormImpl
    assert spec.composite_op_name == "rms_norm"
    assert list(spec.composite_attrs) == ["axes", "eps", "version"]


def test_spec_usage_converts_with_its_version() -> None:
    snippet = COMPOSITE_EXTERNALIZATION.replace('["axes", "eps"]', '["axes", "eps", "version"]')
    namespace = play(snippet)
    assert_agrees(namespace, *namespace["sample"])
    assert composites(namespace) == {"ai.coreai::rms_norm": 1}


class Attention(nn.Module):
    """What the second document calls ``model``: a module that holds an SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.sdpa = SDPA(scale=0.3, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        heads = self.qkv(x).view(batch, seq, 3, 4, 4).permute(2, 0, 3, 1, 4)
        attended = self.sdpa(heads[0], heads[1], heads[2])
        return attended.transpose(1, 2).reshape(batch, seq, dim)


def test_spec_example() -> None:
    import coreai_onnx

    given = {"model": Attention().eval(), "sample": (torch.randn(2, 7, 16),)}
    namespace = play(SPEC_EXAMPLE, torch=torch, coreai_onnx=coreai_onnx, **given)
    assert_agrees(namespace, *given["sample"])
    (name,) = composites(namespace)
    assert name.startswith("ai.coreai::scaled_dot_product_attention")
    attributes = attributes_of(namespace, name.removeprefix("ai.coreai::"))
    assert attributes["scale"] == pytest.approx(0.3)
    assert attributes["is_causal"] == 1


def test_attributes_need_a_name() -> None:
    with pytest.raises(ValueError, match="composite_op_name"):
        ExternalizeSpec(target_class=RMSNormImpl, composite_attrs=["eps"])


def test_a_class_that_matches_nothing_is_a_warning() -> None:
    namespace = play(FROM_EXPORTED_PROGRAM)
    sample = (torch.randn(1, 10),)
    converter = TorchConverter()
    with pytest.warns(UserWarning, match="SDPA"):
        program = converter.add_pytorch_module(
            namespace["model"],
            export_fn=lambda m: torch.export.export(m, args=sample).run_decompositions(
                get_decomp_table()
            ),
            externalize_modules=[ExternalizeSpec(target_class=SDPA, composite_op_name="s")],
        ).to_coreai()
    assert_close(list(program.run(*sample)), [namespace["model"](*sample)])
