"""Delegated parts: run by the libraries of backends, or as an execution provider compiled them."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError, reason_of
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.delegated_parts import (
    PROVIDER,
    DelegatedPart,
    delegated_parts,
    number_of,
)
from coreai_onnx.runtime.libraries.providers import provider_version

PARTS = "coreai.parts."
"""Prefix of a session's configuration entry: the parts that the library of a domain may run, as
names separated by commas. A library that finds no entry registers names from ``part_0`` on."""
_MOST_CHARACTERS = 8192
"""Maximum length of a configuration entry in onnxruntime."""

Parts = dict[str, list[str]]
"""The names of parts by domain."""


def usable_parts(model: ir.Model, providers: Sequence[str] = ()) -> Parts:
    """Return the parts of a model that backends may run; warn of the others, which are stale.

    Args:
        model: The model.
        providers: The execution providers that are used; parts of others are left out.
    """
    usable: Parts = {}
    stale = {}
    for part in delegated_parts(model):
        provider = provider_of(part)
        if provider and provider not in providers:
            continue
        names = usable.setdefault(part.function.domain, [])
        if fault := part.stale or another_version(part):
            stale[part.name] = fault
        else:
            names.append(part.function.name)
    if stale:
        _warn("\n".join(f"  {name}: {fault}" for name, fault in stale.items()))
    return {domain: _fitting(domain, names) for domain, names in usable.items()}


def _fitting(domain: str, names: list[str]) -> list[str]:
    """Return the names that fit into an entry, and warn of the others."""
    ends = itertools.accumulate(len(name) + 1 for name in names)
    # `ends` counts a comma after each name; the last name has none.
    kept = sum(end - 1 <= _MOST_CHARACTERS for end in ends)
    if kept < len(names):
        warnings.warn(
            f"{len(names) - kept} of the {len(names)} parts of {domain} run on their bodies, from "
            f"{names[kept]} on: an entry of onnxruntime's configuration has {_MOST_CHARACTERS} "
            "characters\n  delegate larger parts, or more of them to other backends",
            RuntimeWarning,
            stacklevel=2,
        )
    return names[:kept]


def add_entries(options: ort.SessionOptions, parts: Mapping[str, Sequence[str]]) -> None:
    """Add the entry of each library, with its parts."""
    for domain, names in parts.items():
        options.add_session_config_entry(PARTS + domain, ",".join(names))


def opened_with(
    parts: Parts, open_model: Callable[[Parts], ort.InferenceSession]
) -> ort.InferenceSession:
    """Open a model with the parts that the libraries accept, and warn of those that they refuse.

    Args:
        parts: The parts that the libraries may run.
        open_model: Opens the model with some of them.

    Raises:
        SessionError: If the model cannot be opened without parts either.
    """
    # onnxruntime stops at the first part that a library refuses, so that each round removes what
    # its message names. A round removes one part at least, so that the loop ends.
    refused: list[str] = []
    while True:
        try:
            opened = open_model(parts)
        except SessionError as error:
            if not any(parts.values()):
                raise
            refused.append(f"  {reason_of(error)}")
            parts = _without_failed(parts, refused[-1])
        else:
            if refused:
                _warn("\n".join(refused))
            return opened


def _without_failed(parts: Parts, message: str) -> Parts:
    """Return the parts that an error of onnxruntime does not name; none if it names no part."""
    kept = {d: [n for n in names if not _is_in(message, d, n)] for d, names in parts.items()}
    # Without progress `opened_with` would try the same parts for ever.
    return {domain: [] for domain in parts} if kept == parts else kept


def _is_in(message: str, domain: str, name: str) -> bool:
    # part_1 is not part_10 nor part_1.2, a copy
    return re.search(re.escape(f"{domain}::{name}") + r"(?!\d|\.\d)", message) is not None


def _warn(reasons: str) -> None:
    warnings.warn(
        f"delegated parts run on their bodies\n{reasons}\n"
        "  delegate the program again with the backend that is installed",
        RuntimeWarning,
        stacklevel=2,
    )


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
    model: ir.Model | None, providers: Mapping[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the options of execution providers, or else those of their first part in a model."""
    parts = delegated_parts(model) if model is not None else []
    # Later keys replace earlier ones, so that the reversed order keeps the first part.
    first = {provider_of(part): part.settings for part in reversed(parts)}
    return {name: options or dict(first.get(name, {})) for name, options in providers.items()}


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
