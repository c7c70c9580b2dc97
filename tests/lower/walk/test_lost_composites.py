"""The warning about composites that were decomposed before the conversion."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn import functional as F

from coreai_onnx import TorchConverter, get_decomp_table
from coreai_onnx.errors import LostCompositesWarning, UnusedLoweringWarning

X = torch.randn(2, 4, 6, 8)


class Model(nn.Module):
    """Calls a function of its modules and the input."""

    def __init__(self, function: Callable[..., torch.Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def exported(model: nn.Module) -> ExportedProgram:
    return torch.export.export(model.eval(), (X,))


def converted(program: ExportedProgram) -> tuple[list[str], dict[str, int]]:
    """Return the warnings of a conversion, and the composites after the passes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LostCompositesWarning)
        result = TorchConverter().add_exported_program(program).to_onnx().optimize()
    lost = [w for w in caught if w.category is LostCompositesWarning]
    assert all(w.filename == __file__ for w in lost)
    return [str(w.message) for w in lost], result.composites()


MODELS = {
    "attention": Model(lambda x, part: part(x), Attention()),
    "silu": Model(F.silu),
    "gelu": Model(F.gelu),
    "hard_swish": Model(F.hardswish),
    "hard_sigmoid": Model(F.hardsigmoid),
    "pixel_shuffle": Model(lambda x: F.pixel_shuffle(x, 2)),
    "float64": Model(lambda x: F.silu(x.double())),
    "log_softmax": Model(lambda x: F.log_softmax(x, -1)),
    "layer_norm": Model(lambda x, norm: norm(x), nn.LayerNorm(8)),
    "group_norm": Model(lambda x, norm: norm(x), nn.GroupNorm(2, 4)),
    "batch_norm": Model(lambda x, norm: norm(x), nn.BatchNorm2d(4)),
    "rms_norm": Model(lambda x, norm: norm(x), nn.RMSNorm(8)),
    "rms_norm, no scale": Model(lambda x, norm: norm(x), nn.RMSNorm(8, elementwise_affine=False)),
    "instance_norm": Model(lambda x, norm: norm(x), nn.InstanceNorm2d(4)),
    "instance_norm, running": Model(
        lambda x, norm: norm(x), nn.InstanceNorm2d(4, track_running_stats=True)
    ),
    "no composite": Model(lambda x: F.softplus(x) + F.mish(x)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_warns_where_composites_are_lost_and_only_there(name: str) -> None:
    program = exported(MODELS[name])
    nothing, kept = converted(program)
    assert nothing == []
    assert converted(program.run_decompositions(get_decomp_table())) == ([], kept)
    texts, remaining = converted(program.run_decompositions())
    assert bool(texts) == (remaining != kept)


def test_the_message_counts_and_has_the_first_place() -> None:
    model = Model(
        lambda x, *parts: F.silu(parts[1](parts[0](x))) + F.gelu(x), Attention(), Attention()
    )
    (text,), _ = converted(exported(model).run_decompositions())
    first, place, advice = text.splitlines()
    assert first == (
        "3 composite(s) were decomposed before the conversion, so that the file has their single "
        "operators: 2x scaled_dot_product_attention, 1x silu"
    )
    assert place.startswith("  first at parts.0 (Attention)   ")
    assert place.endswith("return F.scaled_dot_product_attention(x, x, x, is_causal=True)")
    assert "run_decompositions(coreai_onnx.get_decomp_table())" in advice


def test_a_saved_and_retraced_program_is_recognized() -> None:
    buffer = io.BytesIO()
    program = exported(MODELS["attention"]).run_decompositions().run_decompositions({})
    torch.export.save(program, buffer)
    buffer.seek(0)
    (text,), _ = converted(torch.export.load(buffer))
    assert "1x scaled_dot_product_attention" in text


def test_it_looks_into_branches() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, F.silu, lambda y: y.clone(), (x,))

    (text,), _ = converted(exported(Branch()).run_decompositions())
    assert "1x silu" in text


def test_externalized_modules_keep_theirs() -> None:
    program = (
        TorchConverter()
        .add_pytorch_module(
            MODELS["attention"],
            export_fn=lambda m: torch.export.export(m, (X,)).run_decompositions(),
            externalize_modules=[Attention],
        )
        .to_onnx()  # a warning would be an error
    )
    assert program.composites()["ai.coreai::scaled_dot_product_attention"] == 1


class Softplus(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(x)


def unused_lowering(program: ExportedProgram) -> list[str]:
    """Return the warnings of a conversion in which a lowering makes softplus a negation."""
    converter = TorchConverter()

    @converter.register_torch_lowering("aten::softplus.default", allow_override=True)
    def negated(op: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return op.Neg(self)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnusedLoweringWarning)
        result = converter.add_exported_program(program).to_onnx()
    unused = [str(w.message) for w in caught if w.category is UnusedLoweringWarning]
    assert torch.equal(torch.tensor(result.run(X)[0]), -X) is not bool(unused)
    return unused


def test_a_lowering_whose_operator_was_decomposed() -> None:
    program = exported(Softplus())
    assert unused_lowering(program) == []
    assert unused_lowering(program.run_decompositions({})) == []
    (message,) = unused_lowering(program.run_decompositions())
    first, where, advice = message.splitlines()
    assert first.startswith("the lowerings registered for these operators are not called")
    assert where.startswith("  aten.softplus.default at ")
    assert where.endswith("return F.softplus(x)")
    assert "leave them out of the table of run_decompositions" in advice


def test_a_lowering_whose_operator_is_not_in_the_program() -> None:
    converter = TorchConverter()
    converter.register_torch_lowering("aten::relu.default", allow_override=True)(lambda op, x: x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converter.add_exported_program(exported(Softplus())).to_onnx()
