"""Models that consist of one composite call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies import composite_functions
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.lower import LoweredProgram
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import ir_dtype, set_dims
from coreai_onnx.model.weight_formats import BLOCK_SIZE

Shape = tuple[int, ...]

_SCALES_OF_CODES: Mapping[int, Callable[[torch.Tensor], torch.Tensor]] = dict.fromkeys(
    (2, 4), lambda scales: scales.abs() / 64
)
_ADMISSIBLE: Mapping[str, Mapping[int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "gated_delta_update": {3: lambda g: -g.abs(), 4: torch.sigmoid},
    "batch_norm": {4: lambda variance: variance.abs() + 0.5},
    "linear_nbits": {2: lambda scales: scales / 256},
    "attention_nbits": _SCALES_OF_CODES,
    "paged_attention": {3: lambda table: table % 5},
    "paged_attention_nbits": {**_SCALES_OF_CODES, 5: lambda table: table % 5},
    "gather_mm_nbits": {2: lambda scales: scales / 256, 3: lambda indices: indices % 4},
}
"""By composite and position: makes random numbers what an input can be: a decay never
grows, codes times scales are weights of a usual size."""


@dataclass(frozen=True)
class Case:
    """One call of a composite.

    Attributes:
        composite: Its name.
        shapes: Shape of each input; None for an absent one.
        attributes: Attributes that are not the default.
        dtypes: Dtype of inputs that is not the composite's own, by position.
        label: What is special about it.
        limit: Integer inputs are below this.
    """

    composite: str
    shapes: tuple[Shape | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[int, torch.dtype] = field(default_factory=dict)
    label: str = ""
    limit: int = 9

    def __str__(self) -> str:
        return f"{self.composite}-{self.label}"

    def inputs(self, dtype: torch.dtype) -> list[torch.Tensor | None]:
        """Return random inputs, the same for the same case."""
        generator = torch.Generator().manual_seed(len(str(self)))
        admissible = _ADMISSIBLE.get(self.composite, {})
        inputs: list[torch.Tensor | None] = []
        for i, shape in enumerate(self.shapes):
            if shape is None:
                inputs.append(None)
                continue
            x = _random(shape, self.dtypes.get(i, dtype), generator, self.limit)
            inputs.append(admissible.get(i, torch.clone)(x))
        if self.composite.endswith("_nbits"):
            self._scale_down(inputs)
            self._describe_blocks(inputs, generator)
        return inputs

    def _describe_blocks(
        self, inputs: list[torch.Tensor | None], generator: torch.Generator
    ) -> None:
        """Make a table one of codes, and a layout one whose numbers select its rows."""
        names = [one.name for one in COMPOSITES[self.composite].inputs[: len(inputs)]]
        parts = dict(zip(names, inputs, strict=True))
        table, layout, blocks = (parts.get(name) for name in ("table", "layout", "codes"))
        if table is None or layout is None or blocks is None or layout.shape[1:] != (7,):
            return
        inputs[names.index("table")] = table % (1 << self.attributes["bits"])
        groups = BLOCK_SIZE // self.attributes["group_size"]
        numbers = _random((len(layout), 7), torch.int32, generator, 1 << 20)
        numbers[:, 0] %= len(table) - 127
        numbers[:, 1::3] %= 8 * blocks.shape[-1] - 4  # the place of a field
        numbers[:, [2, 3, 5, 6]] = torch.tensor([5, 1, 2, 32], dtype=torch.int32)
        numbers[:groups, [3, 6]] = torch.tensor([1, -9], dtype=torch.int32)
        inputs[names.index("layout")] = numbers

    def _scale_down(self, inputs: list[torch.Tensor | None]) -> None:
        """Divide scales of blocks and minimums, so that weights have a usual size."""
        factor = 2.0 ** -self.attributes.get("scale_bits", 0)
        for place, declared in enumerate(COMPOSITES[self.composite].inputs[: len(inputs)]):
            x = inputs[place]
            if x is not None and declared.name == "minimums":
                inputs[place] = x * (factor / 16)
            elif x is not None and declared.name == "scales" and factor < 1:
                inputs[place] = x * factor

    def expected(self, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the first output of the reference."""
        return self.expected_outputs(inputs)[0]

    def expected_outputs(self, inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return what the reference gives."""
        result = COMPOSITES[self.composite].reference(*inputs, **self.attributes)
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def model(self, dtype: torch.dtype, *, dynamic: bool, opset: int = 23) -> ir.Model:
        """Return a model whose graph is the call; dims are symbolic if ``dynamic``."""
        return call_model(self, self.inputs(dtype), dynamic=dynamic, opset=opset)


def call_model(
    case: Case, inputs: Sequence[torch.Tensor | None], *, dynamic: bool, opset: int
) -> ir.Model:
    """Return a model of one composite call on inputs like these."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
    names = Names()
    calls = CompositeCalls()
    op = OpBuilder(Scope(graph, names), opset, calls)
    values: list[ir.Value | None] = []
    for declared, tensor in zip(COMPOSITES[case.composite].inputs, inputs, strict=False):
        if tensor is None:
            values.append(None)
            continue
        value = ir.Value(name=names.unique(declared.name))
        value.dtype = ir_dtype(tensor.dtype)
        set_dims(value, tuple(tensor.shape))
        if dynamic:
            value.shape = ir.Shape(
                [f"{declared.name}_{i}" if d > 1 else d for i, d in enumerate(tensor.shape)]
            )
        graph.inputs.append(value)
        values.append(value)
    attributes = dict(case.attributes)
    if "attention" in case.composite and not attributes.get("scale"):
        attributes["scale"] = inputs[0].shape[-1] ** -0.5  # type: ignore[union-attr]  # never absent
    results = op.composite_outputs(case.composite, values, **attributes)
    for index, (result, wanted) in enumerate(
        zip(results, case.expected_outputs(inputs), strict=True)
    ):
        result.name = f"result_{index}"
        result.shape = ir.Shape([f"result_{index}_{i}" for i in range(wanted.ndim)])
        graph.outputs.append(result)
    return LoweredProgram(graph, names).model(composite_functions(calls.calls, opset), "main")


def _random(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator, limit: int
) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.4
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, limit, shape, generator=generator, dtype=dtype)
