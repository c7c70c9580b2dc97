"""Modules that a backend has processed."""

from __future__ import annotations

import copy
import io
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind, TensorArgument

from coreai_onnx.converter import TorchConverter
from coreai_onnx.delegation.backends import HANDLE, CompileSpec, check_id, processed, settings_of
from coreai_onnx.errors import DelegationError, InputError, Where, failures_as
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.externalize.delegate_call import (
    DELEGATE,
    Delegate,
    delegate_of,
    is_number,
)
from coreai_onnx.export.functionalize.replaced_graph import with_graph
from coreai_onnx.lower.walk.location import where_of


class LoweredModule(torch.nn.Module):
    """A program that a backend has processed, as a module that larger modules may call.

    Exported and lowered to ONNX, a call of it is a call of a function in the domain of the backend.
    The body of the function is the program, so that runtimes without the backend's op run it.
    """

    def __init__(self, delegate: Delegate) -> None:
        """Hold a delegate, and its weights as buffers."""
        super().__init__()
        self._delegate = delegate
        signature = delegate.program.graph_signature
        names = [spec.arg.name for spec in signature.input_specs if spec.target is not None]
        weights = {name: f"weight_{number}" for number, name in enumerate(names)}
        for name, value in zip(names, delegate.weights, strict=True):
            # Buffers, so that ``to``, ``state_dict`` and an export of the outer module find the
            # weights.
            self.register_buffer(weights[name], value.detach())
        # Strict exports trace ``forward``, and cannot read an exported program.
        self._inputs = [(weights.get(n.name, ""), is_number(n)) for n in delegate.placeholders]
        self._user_inputs = [n.name for n in delegate.placeholders if n.name not in weights]
        # As text, because arguments of an operator cannot be Python objects.
        self._tag = delegate.tag
        self._out_spec = delegate.program.call_spec.out_spec

    @classmethod
    def from_bytes(
        cls,
        backend_id: str,
        processed_bytes: bytes,
        reference: ExportedProgram,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        version: str = "",
        holds_weights: bool = True,
    ) -> LoweredModule:
        """Return a module that runs bytes which a backend made elsewhere.

        The backend need not be registered.

        Args:
            backend_id: The domain of the backend's op.
            processed_bytes: What the backend made.
            reference: A program of `to_edge` that computes the same, for runtimes without the op;
                for a ``.onnx`` file, that of an `OnnxModule`. Its weights and inputs are the inputs
                of the op.
            compile_specs: The settings that the backend was given.
            version: The version of the backend, see `BackendDetails`.
            holds_weights: Whether the bytes contain the values of the weights of the reference.

        Raises:
            DelegationError: If the id is not a text, the reference has states, or there are no
                bytes.
        """
        check_id(backend_id)
        if not isinstance(processed_bytes, bytes):
            raise DelegationError(f"processed_bytes is not bytes, but {processed_bytes!r:.80}")
        _check_whole(reference)
        settings = settings_of(compile_specs)
        return cls(
            Delegate(backend_id, reference, processed_bytes, settings, version, holds_weights)
        )

    @property
    def backend_id(self) -> str:
        """The backend that processed the program."""
        return self._delegate.backend_id

    @property
    def processed_bytes(self) -> bytes:
        """What the backend made of the program."""
        return self._delegate.processed_bytes

    @property
    def compile_specs(self) -> tuple[CompileSpec, ...]:
        """The settings that the backend was given."""
        return tuple(CompileSpec(*one) for one in self._delegate.compile_specs)

    @property
    def meta(self) -> dict[str, Any]:
        """The ``debug_handle_map`` that the backend returned."""
        return {"debug_handle_map": dict(self._delegate.debug_handle_map)}

    @property
    def debug_handles(self) -> dict[int, Where]:
        """The places in the user's code of the part's operators, by their debug handles."""
        nodes = (node for node in self._delegate.operators if HANDLE in node.meta)
        return {node.meta[HANDLE]: where_of(node) for node in nodes}

    @property
    def original_module(self) -> ExportedProgram:
        """The program."""
        return self._delegate.program

    def buffer(self) -> bytes:
        """Return the ``.onnx`` file of a program that is a call of this module.

        Raises:
            CoreaiError: If the body of the part cannot be expressed in ONNX.
        """
        converter = TorchConverter().add_exported_program(calling(self._delegate))
        program = converter.to_onnx()
        program.optimize()
        content: bytes = program.to_proto().SerializeToString()
        return content

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredModule:
        """Return a module with copies of the weights; the part cannot change and is shared."""
        # torch.export copies modules: with a copied part, the tag would name another one.
        module = memo[id(self)] = type(self)(self._delegate).train(self.training)
        for name, value in self.named_buffers():
            setattr(module, name, copy.deepcopy(value, memo))
        return module

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle: the program is stored as by ``torch.export.save``.

        Raises:
            DelegationError: If torch cannot store the program.
        """
        file, part = io.BytesIO(), self._delegate
        with failures_as(DelegationError, f"the program of the part {part.tag} cannot be stored"):
            # An exported program cannot be pickled itself.
            torch.export.save(part.program, file)
        rest = (
            part.processed_bytes,
            part.compile_specs,
            part.version,
            part.holds_weights,
            part.debug_handle_map,
        )
        return {**vars(self), "_delegate": (part.backend_id, file.getvalue(), *rest)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the part, under a new tag."""
        backend_id, content, *rest = state["_delegate"]
        # The old tag may belong to another part of this process.
        part = Delegate(backend_id, torch.export.load(io.BytesIO(content)), *rest)
        super().__setstate__({**state, "_delegate": part, "_tag": part.tag})

    @property
    def delegate(self) -> Delegate:
        """The delegate that the op of this module's calls runs."""
        return self._delegate

    def forward(self, *args: Any, **named: Any) -> Any:
        """Run the program.

        Raises:
            InputError: If the inputs, a dtype or a size are not those of the program.
        """
        leaves = pytree.tree_leaves(args)
        rest = self._user_inputs[len(leaves) :]
        if named and sorted(named) == sorted(rest):
            leaves += [named[name] for name in rest]
        # Names that are given must be all of those that positions leave.
        elif named:
            raise InputError(
                f"the part {self._tag} takes {', '.join(rest) or 'none'} by name, "
                f"not {', '.join(named)}"
            )
        if len(leaves) != len(self._user_inputs):
            names = ", ".join(self._user_inputs) or "none"
            raise InputError(
                f"the part {self._tag} takes the inputs ({names}); "
                f"number of inputs given: {len(leaves)}"
            )
        user_inputs = zip(self._user_inputs, leaves, strict=True)
        tensors: list[Any] = []
        numbers: list[Any] = []
        for weight, number in self._inputs:
            name, value = (weight, getattr(self, weight)) if weight else next(user_inputs)
            if not isinstance(value, torch.SymInt | int if number else torch.Tensor):
                raise InputError(
                    f"the part {self._tag} takes {'an integer' if number else 'a tensor'} as "
                    f"{name}, got {type(value).__name__}"
                )
            # The schema of the operator has one list for each kind.
            (numbers if number else tensors).append(value)
        outputs = DELEGATE(tensors, numbers, self._tag)
        return pytree.tree_unflatten(list(outputs), self._out_spec)


def calling(delegate: Delegate) -> ExportedProgram:
    """Return a program with the inputs and outputs of a part that is one call of it."""
    program = delegate.program
    graph = fx.Graph()
    inputs = {node: graph.node_copy(node) for node in delegate.placeholders}
    for node, copied in inputs.items():
        # ``node_copy`` may rename a node whose name is a keyword or taken.
        copied.name = node.name
    numbers = [copied for node, copied in inputs.items() if is_number(node)]
    tensors = [copied for copied in inputs.values() if copied not in numbers]
    call = graph.call_function(DELEGATE, (tensors, numbers, delegate.tag))
    # Parts are found by weak references: the node keeps this one alive.
    call.meta["delegate"] = delegate
    (results,) = program.graph.output_node().args
    assert isinstance(results, tuple | list)
    outputs = [graph.call_function(operator.getitem, (call, n)) for n in range(len(results))]
    for output, result in zip(outputs, results, strict=True):
        assert isinstance(result, fx.Node)
        output.meta = dict(result.meta)
    call.meta["val"] = [output.meta["val"] for output in outputs]
    graph.output(tuple(outputs))
    old = program.graph_signature
    specs = [
        replace(spec, arg=replace(spec.arg, name=output.name))
        for spec, output in zip(old.output_specs, outputs, strict=True)
    ]
    signature = ExportGraphSignature(list(old.input_specs), specs)
    return with_graph(program, fx.GraphModule(program.graph_module, graph), signature)


def with_lowered_modules(program: ExportedProgram) -> ExportedProgram:
    """Return the given program, which now owns the parts that it calls.

    Each graph module has the parts that it calls as ``lowered_module_0`` and so on, in order. They
    are attributes, not submodules, because their weights are those of the program.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            parts: dict[Delegate, None] = {}
            for call in module.graph.find_nodes(op="call_function", target=DELEGATE):
                # Weak references find a part by its tag; the node keeps it alive as long as the
                # program.
                call.meta["delegate"] = part = delegate_of(str(call.args[2]))
                parts[part] = None
            for number, part in enumerate(parts):
                # ``setattr`` would register a submodule.
                vars(module)[f"lowered_module_{number}"] = LoweredModule(part)
    return program


def lowered_module(
    backend_id: str, edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec] = ()
) -> LoweredModule:
    """Let a backend process a whole program.

    Args:
        backend_id: The id of a registered backend.
        edge_program: A program of `to_edge` without states; it is not changed.
        compile_specs: Settings for the backend.

    Raises:
        DelegationError: If there is no such backend, the program has states or a result that is not
            a tensor, or the backend raises or returns no bytes.
    """
    _check_whole(edge_program)
    return LoweredModule(processed(backend_id, edge_program, compile_specs))


def _check_whole(program: Any) -> None:
    """Raise DelegationError if a program cannot be delegated as a whole."""
    if not isinstance(program, ExportedProgram):
        raise DelegationError(
            f"to_backend takes an exported program, got {type(program).__name__}\n"
            "  pass to_edge(torch.export.export(module, args)).exported_program()"
        )
    for spec in program.graph_signature.output_specs:
        if not isinstance(spec.arg, TensorArgument):
            raise DelegationError(
                f"the result {spec.arg.name or spec.arg} is not a tensor\n"
                "  use a Partitioner: it leaves such results in the program"
            )
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    # The function of a part returns values; it has no states to write to.
    if kinds - {OutputKind.USER_OUTPUT}:
        raise DelegationError(
            "a program with states cannot be delegated as a whole\n"
            "  use a Partitioner: it leaves the states in the program"
        )
    for node in program.graph.nodes:
        if node.op == "placeholder" and not isinstance(
            node.meta.get("val"), torch.Tensor | torch.SymInt | int
        ):
            raise DelegationError(
                f"the input {node.name} is {node.meta.get('val')!r:.40}; a part takes tensors and "
                "integers\n  make it a constant of the module, or a tensor"
            )
