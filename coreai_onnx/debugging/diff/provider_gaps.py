"""Which nodes of a file an execution provider leaves to the CPU, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import onnx_ir as ir

from coreai_onnx.errors import LoadError, ProviderError, failures_as
from coreai_onnx.messages import printable, render
from coreai_onnx.model.files.program_files import load_models
from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.provenance.places import Marked, Place, marked
from coreai_onnx.runtime.libraries.providers import claimed_nodes, has_provider, missing_provider
from coreai_onnx.targets.coverage import SOURCES, TABLES, gaps
from coreai_onnx.targets.providers import CPU, Choice, chosen_providers

_REJECTED = "the provider does not take it: an attribute or a shape"
_DECLARED = "compute sizes or convert integer inputs, on the CPU on purpose"


@dataclass(frozen=True)
class _Left:
    """A node on the CPU.

    Attributes:
        op: Its operator.
        place: Where it comes from.
        reason: Why it is there.
        declared: Whether it is there on purpose.
    """

    op: str
    place: Place
    reason: str
    declared: bool


def provider_gaps(path: str | PathLike[str], provider: Choice) -> str:
    """Return the nodes of a file that an execution provider leaves to the CPU, as text.

    The kernels of CUDA and WebGPU are known without the provider. If it is installed, the file is
    opened with it as well, which tells what it takes.

    Args:
        path: The file.
        provider: A provider, as for `coreai_onnx.session`.

    Raises:
        LoadError: If the file is missing or broken.
        SessionError: If the provider is neither known nor installed, or cannot load the file.
    """
    ((name, settings),) = chosen_providers(provider).items()
    path = Path(path)
    installed = has_provider(name)
    if not installed and name not in TABLES:
        raise missing_provider(name)
    # The weights are read only if onnxruntime opens the model.
    models = load_models(path, data=installed)
    with failures_as(LoadError, f"{path}: cannot be inspected"):
        texts = [_text(model, name, settings if installed else None) for model in models.values()]
    if len(models) > 1:
        texts = [f"{key}\n{text}" for key, text in zip(models, texts, strict=True)]
    return "\n\n".join(texts)


def _text(model: ir.Model, provider: str, settings: Mapping[str, str] | None) -> str:
    """Return the text of a model; ``settings`` are None if the provider is not installed."""
    plain = marked(model, lambda _: True)
    nodes = {
        node.name or "": node
        for node in plain.model.graph.all_nodes()
        if node.op_type != "Constant"
    }
    left = _by_table(plain, provider)
    lines = []
    if provider in TABLES:
        source = f"the kernels of {SOURCES[provider]}"
        lines.append(_count(provider, len(nodes) - len(left), len(nodes), source))
    if settings is not None:
        import onnxruntime  # slow to import

        try:
            left = _by_run(plain, provider, settings, nodes, left)
        except ProviderError as error:
            if not lines:  # there is no table either
                raise
            lines.append(f"without a run: {error}")
        else:
            source = f"the installed onnxruntime {onnxruntime.__version__}"
            lines.append(_count(provider, len(nodes) - len(left), len(nodes), source))
    rows = [one for one in left.values() if not one.declared]
    if on_purpose := len(left) - len(rows):
        lines.append(f"{on_purpose} of the others {_DECLARED}")
    if rows:
        lines.append(_table(rows))
    return "\n".join(lines)


def _count(provider: str, some: int, of: int, source: str) -> str:
    return f"{provider} runs {some} of {of} nodes, by {source}"


def _by_table(plain: Marked, provider: str) -> dict[str, _Left]:
    """Return the nodes without kernels, by name."""
    if provider not in TABLES:
        return {}
    return {
        gap.node.name or "": _left(plain, gap.node, gap.reason, declared=gap.declared)
        for gap in gaps(plain.model, provider)
    }


def _by_run(
    plain: Marked,
    provider: str,
    settings: Mapping[str, str],
    nodes: Mapping[str, ir.Node],
    known: Mapping[str, _Left],
) -> dict[str, _Left]:
    """Return the nodes that onnxruntime assigns to the CPU, with the reasons of the table."""
    if provider == CPU:
        return {}
    owners = claimed_nodes(to_proto(plain.model).SerializeToString(), provider, settings)
    # Only nodes of plugins and of the CPU are recorded: all others are the provider's.
    on_cpu = [name for name, owner in owners.items() if owner == CPU and name in nodes]
    return {
        name: known.get(name) or _left(plain, nodes[name], _REJECTED, declared=False)
        for name in on_cpu
    }


def _left(plain: Marked, node: ir.Node, reason: str, *, declared: bool) -> _Left:
    number = plain.number(node.name or "")
    assert number is not None
    return _Left(node.op_type, plain.places[number], reason, declared)


def _table(rows: Sequence[_Left]) -> str:
    cells = []
    for one in rows:
        where = one.place.where
        node = "/".join(filter(None, [one.place.node, one.place.body]))
        cells.append((printable(node), one.op, one.reason, printable(where.line or where.module)))
    return render(("node", "operator", "why", "line"), cells)
