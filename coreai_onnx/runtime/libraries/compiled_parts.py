"""Parts that an execution provider compiled, in place of their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from coreai_onnx.errors import SessionError
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.delegated_parts import (
    PROVIDER,
    DelegatedPart,
    delegated_parts,
    number_of,
)
from coreai_onnx.runtime.libraries.providers import provider_version

CONTEXT = "EPContext"
IDENTITIES = "EliminateIdentity"
"""The optimizer of onnxruntime that would give the inputs of compiled parts other names."""


def with_compiled_parts(
    model: ir.Model,
    parts: Mapping[str, Sequence[str]],
    settings: Mapping[str, Mapping[str, str]],
) -> ir.Model | None:
    """Return a copy of a model in which parts run what execution providers have compiled.

    Args:
        model: The model; it is not changed.
        parts: The parts to replace, by domain. Those of other backends are ignored, as are those of
            a provider that does not compile.
        settings: The settings of the execution providers.

    Returns:
        The copy, or None if there is no part to replace.

    Raises:
        SessionError: If a part has other settings, or is called in a branch or function.
    """
    if not any(domain.startswith(PROVIDER) and names for domain, names in parts.items()):
        return None
    copy = model.clone()
    for part in delegated_parts(copy):
        if part.function.name in parts.get(part.function.domain, ()):
            # onnxruntime takes one set of settings per provider and session: that of the first
            # part.
            if part.settings != settings.get(provider_of(part), part.settings):
                raise SessionError(f"{part.name} has other settings than the first part")
            _replace(copy, part)
    return copy


def provider_of(part: DelegatedPart) -> str:
    """Return the execution provider that compiled a part; empty for another backend."""
    domain = part.function.domain
    return domain.removeprefix(PROVIDER) if domain.startswith(PROVIDER) else ""


def provider_settings(
    model: ir.Model | None, providers: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of execution providers: those of their first part in a model."""
    parts = delegated_parts(model) if model is not None else []
    # Later keys replace earlier ones, so that the reversed order keeps the first part.
    first = {provider_of(part): part.settings for part in reversed(parts)}
    return {name: first.get(name, {}) for name in providers}


def another_version(part: DelegatedPart) -> str:
    """Return why the installed provider cannot load a part of another one; empty if it can.

    Raises:
        SessionError: If the provider is not available.
    """
    provider = provider_of(part)
    installed = provider_version(provider) if provider else part.version
    if installed == part.version:
        return ""
    return f"version {part.version} of the provider compiled it, version {installed} is installed"


def _replace(model: ir.Model, part: DelegatedPart) -> None:
    """Replace the calls of a part that an execution provider compiled."""
    content = part.processed()
    if content is None or not provider_of(part):
        return
    for call in part.calls:
        with without_warnings():  # onnx_ir expects text in attributes; providers write bytes
            compiled = ir.from_proto(onnx.ModelProto.FromString(content))
        if any(node.op_type == CONTEXT for node in compiled.graph):
            _splice(model, call, compiled.graph, part.weights)


def _splice(model: ir.Model, call: ir.Node, compiled: ir.Graph, weights: int) -> None:
    """Replace a call by the nodes of a compiled model, whose inputs and outputs keep their names.

    Raises:
        SessionError: If the call is in a branch, loop or function, whose values have other names.
    """
    if call.graph is not model.graph:
        raise SessionError(f"{call.domain}::{call.op_type} is called in a branch or function")
    arguments = call.inputs[weights:-1]
    # An EPContext node binds its inputs and outputs by the names of its compilation, so that
    # Identity nodes translate between these and the names of the model.
    before = [_identity(arguments[number_of(str(v.name))], v) for v in compiled.inputs]
    for node, value in zip(before, list(compiled.inputs), strict=True):
        ir.convenience.replace_all_uses_with(value, node.outputs[0])
    outputs = {number_of(str(value.name)): value for value in compiled.outputs}
    nodes, imports = list(compiled), compiled.opset_imports
    # What the provider left to the CPU is in the compiled model too. onnx_ir refuses nodes and
    # values that belong to another graph, so they leave theirs first.
    weights_of_rest = list(compiled.initializers.values())
    compiled.initializers.clear()
    compiled.outputs.clear()
    compiled.remove(nodes)
    for value in weights_of_rest:
        model.graph.register_initializer(value)
    after = [_identity(outputs[number], old) for number, old in enumerate(call.outputs)]
    model.graph.insert_before(call, [*before, *nodes, *after])
    ir.convenience.replace_nodes_and_values(
        model.graph, call, [call], [], list(call.outputs), [node.outputs[0] for node in after]
    )
    for domain in {node.domain for node in nodes}:
        model.opset_imports.setdefault(domain, imports[domain])


def _identity(value: ir.Value | None, like: ir.Value) -> ir.Node:
    """Return a node that gives a value the name and type of another one."""
    node = ir.node("Identity", [value])
    node.outputs[0].name, node.outputs[0].type = like.name, like.type
    node.outputs[0].shape = like.shape
    return node
