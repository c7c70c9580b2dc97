"""The op of a call: results shared by calls that are alike, bodies exported once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import RMSNormImpl
from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.externalize import module_call
from coreai_onnx.export.externalize import modules as externalize
from coreai_onnx.export.externalize.module_call import OP
from coreai_onnx.export.externalize.modules import Externalization
from tests.support.externalized import calls, converted, functions
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


class Counted:
    """Counts how often forwards run, and how often bodies are exported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies = 0
        original = Externalization._export_body

        def export(*args: Any) -> Any:
            self.bodies += 1
            return original(*args)

        monkeypatch.setattr(Externalization, "_export_body", export)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


class Norm(torch.nn.Module):
    """An RMS norm."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(torch.nn.Module):
    """Two norms and a linear layer; an index that nothing reads."""

    runs = 0

    def __init__(self, index: int, eps: tuple[float, float] = (1e-5, 1e-5)) -> None:
        super().__init__()
        self.layer_idx = index
        self.before, self.after = Norm(eps[0]), Norm(eps[1])
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        type(self).runs += 1
        return x + self.after(self.linear(self.before(x)))


def stack(*layers: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(*layers)


DIMS = {"input": {0: Dim("batch")}}
RMS_NORM = "ai.coreai::rms_norm"
"""What a pass makes of the norms."""


def test_layers_that_are_alike_run_and_export_once(counted: Counted) -> None:
    model, x = stack(*(Layer(i) for i in range(8))), torch.randn(2, 8)
    Layer.runs = 0
    program = coreai_onnx.convert(model, (x,), dynamic_shapes=DIMS, externalize_modules=[Layer])
    assert counted.bodies == 1
    assert Layer.runs == 2  # once in the model's export, once in the body's
    assert functions(program) == ["ai.coreai.module::Layer", RMS_NORM]
    assert len(calls(program, "Layer")) == 8


def test_nested_modules_export_once(counted: Counted) -> None:
    model, x = stack(*(Layer(i) for i in range(4))), torch.randn(2, 8)
    specs = [Layer, ExternalizeSpec(Norm, "rms_norm", ["eps"])]
    program = converted(model, (x,), specs, dynamic_shapes=DIMS)
    assert counted.bodies == 2
    assert program.composites() == {"ai.coreai::rms_norm": 8, "ai.coreai.module::Layer": 4}


@pytest.mark.parametrize("specs", [[Layer], [Layer, Norm], [Norm]])
def test_what_the_layers_read_keeps_them_apart(specs: list[Any], counted: Counted) -> None:
    """The second norm of the third layer has another eps: its own body, also in nested ones."""
    layers = [Layer(0), Layer(1), Layer(2, (1e-5, 0.5)), Layer(3)]
    program = converted(stack(*layers), (torch.randn(2, 8),), specs, dynamic_shapes=DIMS)
    expected = {Layer: ["Layer", "Layer.2"], Norm: ["Norm", "Norm.2"]}
    names = [name for kind in specs for name in expected[kind]]
    assert sorted(f.rpartition("::")[2] for f in functions(program)) == sorted([*names, "rms_norm"])


def test_attributes_on_inner_nodes_keep_layers_apart() -> None:
    """The index is on the node of a composite inside: three bodies, though nothing computes it."""

    class Tagged(torch.nn.Module):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Outer(torch.nn.Module):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.tagged = Tagged(index)

        def forward(self, x: Tensor) -> Tensor:
            return self.tagged(x) + 1

    model = stack(*(Outer(i) for i in (4, 5, 5)))
    spec = ExternalizeSpec(Tagged, "tagged", ["index"])
    program = converted(model, (torch.randn(3),), [Outer, spec])
    nodes = calls(program, "tagged")
    assert sorted(n.attributes["index"].value for n in nodes) == [4, 5]
    assert [len(calls(program, name)) for name in ("Outer", "Outer.2")] == [1, 2]


def test_constants_of_a_type_of_their_own() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: Tensor, by: Any) -> Tensor:
            return x + type(by)(True) * by if isinstance(by, bool) else x * by

    class Uses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale()

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.scale(x, 1), self.scale(x, True), self.scale(x, 1.0)

    converted(Uses(), (torch.arange(3),), [Scale])


def test_another_shape_dtype_or_layout_is_another_call(counted: Counted) -> None:
    class Uses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([RMSNormImpl() for _ in range(6)])

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            a, b, c, d, e, f = self.norms
            one = torch.ones(4)
            return (
                a(x, one), b(x, one), c(x[:2], one), d(x.double(), one.double()),
                e(x.t().contiguous().t(), one), f(x, one),
            )  # fmt: skip

    converted(Uses(), (torch.randn(4, 4),), [ExternalizeSpec(RMSNormImpl, "norm")])
    assert counted.bodies == 4


def test_a_module_that_changed_between_its_calls() -> None:
    class Toggles(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.norm.eps = 1e-5
            first = self.norm(x)
            self.norm.eps = 0.5
            second = self.norm(x)
            self.norm.eps = 1e-5  # else the model would keep something that the program does not
            return first, second

    program = converted(Toggles(), (torch.randn(2, 8),), [Norm])
    assert functions(program) == ["ai.coreai.module::Norm", "ai.coreai.module::Norm.2", RMS_NORM]


def test_a_forward_of_an_instance_is_not_that_of_its_class() -> None:
    model = stack(Norm(), Norm(), Norm())
    model[1].forward = lambda x: x * 3
    program = converted(model, (torch.randn(2, 8),), [Norm])
    assert functions(program) == ["ai.coreai.module::Norm", "ai.coreai.module::Norm.2", RMS_NORM]


def test_results_that_hang_on_numbers_run_each_time() -> None:
    class Nonzero(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.nonzero() * 2

    model = stack(Nonzero())

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Nonzero(), Nonzero()

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(y)

    x, y = torch.tensor([1.0, 0, 2]), torch.tensor([0, 0, 3.0])
    converted(Twice(), (x, y), [Nonzero])
    converted(model, (x,), [Nonzero])


def test_the_whole_model_as_one_function() -> None:
    model, x = Layer(0), torch.randn(2, 8)
    program = converted(model, (x,), [Layer], dynamic_shapes={"x": {0: Dim("batch")}})
    assert [n.op_type for n in program.model.graph] == ["Layer"]
    assert set(program.model.graph.initializers) == {name for name, _ in model.named_parameters()}
    assert [v.name for v in program.model.graph.inputs] == ["x"]
    nested = converted(copy.deepcopy(model), (x,), [Layer, ExternalizeSpec(Norm, "rms_norm")])
    assert nested.composites() == {"ai.coreai::rms_norm": 2, "ai.coreai.module::Layer": 1}


def test_the_whole_model_as_a_standard_composite() -> None:
    program = converted(Norm(), (torch.randn(2, 8),), [ExternalizeSpec(Norm, "rms_norm")])
    assert [n.op_type for n in program.model.graph] == ["rms_norm"]


def test_a_program_outlives_its_patches_but_not_its_calls() -> None:
    model, x = stack(Norm()), torch.randn(2, 8)
    externalization = Externalization(model, [Norm])
    with externalization.patched(), torch.no_grad():
        program = torch.export.export(model, (x,))
    (node,) = [n for n in program.graph.nodes if n.target is OP]
    torch.testing.assert_close(program.module()(x), model(x).detach())
    del externalization
    module_call._CALLS.pop(str(node.args[3]), None)
    with pytest.raises(ExternalizationError, match="no longer exists"):
        program.module()(x)


def test_public_names_stay_where_they_were() -> None:
    assert externalize.ExternalizeSpec is ExternalizeSpec
    assert externalize.ModuleCall is module_call.ModuleCall


class Scaled(torch.nn.Module):
    """Keeps its last scale in an attribute, which starts as a tensor of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.ones(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.abs().max().reshape(1)
        return x / self.last


class Normed(torch.nn.Module):
    """A convolution whose weight a hook computes before each call."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.layer = norm(torch.nn.Conv1d(2, 2, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Normed(torch.nn.utils.weight_norm),
        lambda: Normed(torch.nn.utils.spectral_norm),
        lambda: Normed(torch.nn.utils.parametrizations.weight_norm),
        Scaled,
    ],
    ids=["old_weight_norm", "old_spectral_norm", "weight_norm", "own_attribute"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # torch's own
def test_an_externalized_module_may_assign_to_its_attributes(make: Any) -> None:
    model, x = torch.nn.Sequential(make(), make()).eval(), torch.randn(1, 2, 6)
    before = [vars(inner).copy() for inner in model.modules()]
    kind = type(model[0])
    program = coreai_onnx.convert(model, (x,), externalize_modules=[ExternalizeSpec(kind)])
    assert [node.op_type for node in program.model.graph] == [kind.__name__] * 2
    for inner, own in zip(model.modules(), before, strict=True):
        held = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
        assert all(vars(inner)[name] is value for name, value in held.items())
    assert coreai_onnx.compare(program, model, (x,)).ok


class Reads(torch.nn.Module):
    """Reads a number from a tensor: a size of its result, a factor, or a result."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor, count: Tensor) -> Any:
        number = count.item()
        if self.what == "result":
            return x, number
        return x[:number] * 2 if self.what == "size" else x * number


class ReadsTwice(torch.nn.Module):
    """Two such parts."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first, self.second = Reads(what), Reads(what)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return self.first(x, count)[0] - self.second(x + 1, count)[-1]


@pytest.mark.parametrize("what", ["size", "factor"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_a_number_that_only_the_module_reads(what: str, dtype: torch.dtype) -> None:
    if what == "size" and dtype != torch.int64:
        dtype = torch.int32
    model, x = ReadsTwice(what), torch.randn(5, 3)
    given = (x, torch.tensor(3, dtype=dtype))
    program = coreai_onnx.convert(model, given, externalize_modules=[Reads])
    assert functions(program) == ["ai.coreai.module::Reads"]
    for count in (1, 2, 4):
        other = torch.tensor(count, dtype=dtype)
        assert_close(program.run(x, other)[0], model(x, other))


def test_a_number_that_the_module_returns() -> None:
    given = (torch.randn(5, 3), torch.tensor(3))
    with pytest.raises(
        ExternalizationError, match=r"first returns a number .*\n  return the tensor"
    ):
        coreai_onnx.convert(ReadsTwice("result"), given, externalize_modules=[Reads])
