"""The kernels of an execution provider, as it claims nodes of each operator in each dtype."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from tools.generate_provider_kernels import (
    CONTRIB,
    OLDEST_OPSET,
    Kernels,
    Types,
    span_of,
    versions,
)

NUMBERS = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "uint32": TensorProto.UINT32,
    "int8": TensorProto.INT8,
    "bfloat16": TensorProto.BFLOAT16,
    "double": TensorProto.DOUBLE,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
    "uint64": TensorProto.UINT64,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
}
"""Dtypes, those that a kernel most likely has first."""
ATTRIBUTES: dict[str, Any] = {
    "K": 32, "N": 32, "block_size": 32, "bits": 4, "axis": 0, "blocksize": 1, "equation": "i->i",
    "num_heads": 1, "kv_num_heads": 1, "kernel_shape": [1, 1], "hidden_size": 1, "scales": [1.0],
}  # fmt: skip
"""Values of required attributes with which the kernels can be created."""
BY_OP: dict[str, dict[str, Any]] = {
    "QMoE": {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 1},
    "MoE": {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 1},
}
DTYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype", "RandomNormal": "dtype"}
"""The attribute that is the dtype of the result."""
FORK = multiprocessing.get_context("fork")
INVALID = (
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.NotImplemented,
    state.RuntimeException,
    RuntimeError,
)
"""What onnxruntime raises for a node that a kernel cannot be created for."""
MOST_TRIALS = 60
"""Combinations of dtypes that are tried before an operator counts as one without a kernel."""


def version() -> str:
    """Return the version of onnxruntime."""
    return str(ort.__version__)


def claimed_kernels(provider: str) -> Kernels:
    """Return the kernels of a provider.

    Raises:
        SystemExit: If this onnxruntime does not have the provider.
    """
    if provider not in ort.get_available_providers():
        raise SystemExit(f"this onnxruntime has no {provider}: {ort.get_available_providers()}")
    ort.set_default_logger_severity(4)
    kernels: Kernels = {}
    schemas = {
        (one.domain, one.name, one.since_version): one
        for one in state.get_all_operator_schema()
        if one.domain in ("", CONTRIB) and not one.deprecated
    }
    for (domain, op, since), schema in sorted(schemas.items()):
        key = domain, op
        if since not in versions(key):
            continue
        first, last = span_of(key, since)
        if last < OLDEST_OPSET:
            continue
        operator = Operator(schema, max(first, OLDEST_OPSET), provider)
        types = _in_a_process(operator.types)
        if types is not None:
            kernels.setdefault(key, []).append((first, last, types))
    return kernels


def _in_a_process(function: Callable[[], Types | None]) -> Types | None:
    """Return the result of a function; None if it ends the process, as invalid models may."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sender.send(function()))
    process.start()
    sender.close()
    try:
        result: Types | None = receiver.recv()
    except EOFError:
        result = None
    process.join()
    return result


class Operator:
    """An operator of one opset, which is given to a provider in models of one node."""

    def __init__(self, schema: Any, opset: int, provider: str) -> None:
        self._schema, self._provider = schema, provider
        self._opset = 23 if schema.domain else opset
        self._known: dict[Any, bool] = {}
        self._variables = {
            one.type_param_str: [
                dtype for dtype in NUMBERS if f"tensor({dtype})" in one.allowed_type_strs
            ]
            for one in schema.type_constraints
        }

    def types(self) -> Types | None:
        """Return the dtypes of each variable that is probed; None if there is no kernel."""
        names = [name for name, dtypes in self._variables.items() if dtypes]
        found: Types = defaultdict(set)
        claimed = False
        # An optional input has dtypes too; with it, a kernel may not be created.
        for inputs in (False, True):
            used = {i.typeStr for i in (*self._inputs(optional=inputs), *self._schema.outputs[:1])}
            basis = self._basis([name for name in names if name in used], optional=inputs)
            if basis is None:
                continue
            claimed = True
            for name, dtype in basis.items():
                if name not in found:
                    found[name] |= {
                        one
                        for one in self._variables[name]
                        if one == dtype or self._claimed({**basis, name: one}, optional=inputs)
                    }
        return dict(found) if claimed else None

    def _basis(self, names: Sequence[str], *, optional: bool) -> dict[str, str] | None:
        """Return the first dtypes that the provider claims."""
        products = itertools.product(*(self._variables[name] for name in names))
        for dtypes in itertools.islice(self._likely(products), MOST_TRIALS):
            basis = dict(zip(names, dtypes, strict=True))
            if self._claimed(basis, optional=optional):
                return basis
        return None

    @staticmethod
    def _likely(products: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
        """Yield combinations of common dtypes first."""
        ranks = {dtype: rank for rank, dtype in enumerate(NUMBERS)}
        few = itertools.islice(products, 20000)
        yield from sorted(few, key=lambda dtypes: sum(ranks[dtype] for dtype in dtypes))

    def _inputs(self, *, optional: bool) -> list[Any]:
        kinds = [
            one for one in self._schema.inputs if optional or "Optional" not in str(one.option)
        ]
        return kinds if optional else kinds[: max(self._schema.min_input, 1)]

    def _claimed(self, dtypes: dict[str, str], *, optional: bool) -> bool:
        model = self._model(dtypes, optional=optional)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            session = ort.InferenceSession(model, options, providers=[self._provider])
        except INVALID:
            return False
        # Nodes of providers whose kernels are built in are not recorded, those of the CPU are.
        parts = session.get_provider_graph_assignment_info()
        return {part.ep_name for part in parts} <= {self._provider}

    def _model(self, dtypes: dict[str, str], *, optional: bool) -> bytes:
        schema = self._schema
        inputs, feeds = [], []
        for index, one in enumerate(self._inputs(optional=optional)):
            name = f"x{index}"
            inputs.append(name)
            feeds.append(_value(name, dtypes.get(one.typeStr) or one.typeStr))
        output = schema.outputs[0]
        result = _value("y", dtypes.get(output.typeStr) or output.typeStr)
        attributes = {
            name: ATTRIBUTES.get(name, _SAMPLES.get(str(one.type).rpartition(".")[2], 1))
            for name, one in schema.attributes.items()
            if one.required
        }
        attributes |= BY_OP.get(schema.name, {})
        if dtype := DTYPE_ATTRIBUTES.get(schema.name):
            attributes[dtype] = NUMBERS[dtypes[output.typeStr]]
        if schema.name == "ConstantOfShape":
            kind = NUMBERS[dtypes[output.typeStr]]
            attributes["value"] = helper.make_tensor("value", kind, [1], [0])
        if schema.name == "If":
            for branch in ("then_branch", "else_branch"):
                constant = helper.make_node("Constant", [], ["b"], value_float=1.0)
                kind = helper.make_tensor_value_info("b", TensorProto.FLOAT, [])
                attributes[branch] = helper.make_graph([constant], branch, [], [kind])
            result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        outputs = ["y", *(f"y{index}" for index in range(1, schema.min_output))]
        node = helper.make_node(schema.name, inputs, outputs, domain=schema.domain, **attributes)
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid(CONTRIB, 1)]
        graph = helper.make_graph([node], "one", feeds, [result])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(model.SerializeToString())


_SAMPLES: dict[str, Any] = {"STRING": "", "INTS": [1, 1], "FLOAT": 1.0, "FLOATS": [1.0]}


def _value(name: str, dtype: str) -> Any:
    dtype = dtype.removeprefix("tensor(").removesuffix(")")
    return helper.make_tensor_value_info(name, NUMBERS.get(dtype, TensorProto.FLOAT), None)
