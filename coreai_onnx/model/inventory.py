"""Counts of a model's composite calls, operators and weights, its graphs, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir

from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.model.interface import interface
from coreai_onnx.model.metadata import TARGET

STANDARD_DOMAIN = "ai.coreai"
"""Domain of the standard composites; the only one that has native kernels."""
USER_DOMAIN = "ai.coreai.user"
"""Domain of composites that users define; their kernels are those of `coreai_onnx.kernel`."""
MODULE_DOMAIN = "ai.coreai.module"
"""Domain of plain externalized modules."""
COMPOSITE_DOMAINS = (STANDARD_DOMAIN, USER_DOMAIN, MODULE_DOMAIN)
CONTRIB_DOMAIN = "com.microsoft"
MOST_CALLS = 10**15
"""Upper limit of counts: nested functions that call each function twice grow exponentially."""


def op_name(domain: str, op_type: str) -> str:
    """Return ``Add`` for an ONNX operator and ``ai.coreai::rms_norm`` for any other."""
    return f"{domain}::{op_type}" if domain else op_type


def composite_calls(model: ir.Model) -> dict[str, int]:
    """Count the calls of composites and modules, through every function body.

    A call inside a function counts as often as that function is called, up to ``MOST_CALLS``.

    Returns:
        Name (``ai.coreai::rms_norm``) to count, most frequent first.
    """
    counts = _count(model, expand=frozenset(model.functions))
    mine = {op: n for op, n in counts.items() if op[0] in COMPOSITE_DOMAINS}
    return _named(mine)


def standard_op_types(model: ir.Model) -> list[str]:
    """Return the op types of the standard composites that a model calls anywhere, sorted."""
    return sorted({node.op_type for node in all_nodes(model) if node.domain == STANDARD_DOMAIN})


def op_histogram(model: ir.Model) -> dict[str, int]:
    """Count operators as a reader of the model sees them.

    A composite counts as one operator. A plain externalized module (``ai.coreai.module``) counts
    as the operators in its body.

    Returns:
        Name to count, most frequent first.
    """
    modules = frozenset(key for key in model.functions if key[0] == MODULE_DOMAIN)
    counts = _count(model, expand=modules)
    return _named({op: n for op, n in counts.items() if op[0] != MODULE_DOMAIN})


def roots(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Return the main graph and the functions."""
    return [model.graph, *model.functions.values()]


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph, of the functions, and of every graph in an attribute."""
    for root in roots(model):
        yield from root.all_nodes()


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the function bodies, and every graph in an attribute."""
    roots = [model.graph]
    for function in model.functions.values():
        roots.append(function.graph)
        for default in function.attributes.values():
            roots += attribute_graphs(default)
    for root in roots:
        yield root
        yield from root.subgraphs()


def attribute_graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """Return the graphs that an attribute holds; or () if it has another type."""
    if attribute.is_ref() or attribute.value is None:
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()


def initializers(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every initializer of every graph, function bodies included."""
    for graph in graphs(model):
        yield from graph.initializers.values()


def weights(model: ir.Model) -> tuple[int, int]:
    """Return (elements, bytes) of all initializers; a tensor that is used twice counts once."""
    tensors = {
        id(v.const_value): v.const_value for v in initializers(model) if v.const_value is not None
    }
    elements = sum(tensor.size for tensor in tensors.values())
    return elements, sum(tensor.nbytes for tensor in tensors.values())


_Op = tuple[str, str]


def _count(model: ir.Model, *, expand: frozenset[ir.OperatorIdentifier]) -> Counter[_Op]:
    """Count calls from the main graph, adding the body of each call named in ``expand``."""
    times: Counter[ir.OperatorIdentifier] = Counter()
    counts: Counter[_Op] = Counter()

    def add(body: Mapping[ir.OperatorIdentifier, int], calls: int) -> None:
        for key, count in body.items():
            counts[key[0], key[1]] = min(counts[key[0], key[1]] + count * calls, MOST_CALLS)
            if key in expand:
                times[key] = min(times[key] + count * calls, MOST_CALLS)

    main = _ops(model.graph)
    bodies = {key: _ops(model.functions[key]) for key in expand}
    add(main, 1)
    # The number of calls of a function is complete when all its callers have been counted.
    for key in _callers_first(bodies):
        if times[key]:
            add(bodies[key], times[key])
    return counts


def _ops(graph: ir.Graph | ir.Function) -> Counter[ir.OperatorIdentifier]:
    return Counter(node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(graph))


def _callers_first(
    bodies: Mapping[ir.OperatorIdentifier, Mapping[ir.OperatorIdentifier, int]],
) -> list[ir.OperatorIdentifier]:
    """Return the functions, each after its callers; in any order if they call themselves."""
    callees = {key: body.keys() & bodies.keys() for key, body in bodies.items()}
    try:
        return list(TopologicalSorter(callees).static_order())[::-1]
    except CycleError:
        return list(bodies)


def _named(counts: Mapping[_Op, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {op_name(*op): count for op, count in ordered}


def summarize(name: str, model: ir.Model, needs: str = "") -> str:
    """Return a model's contents as text: interface, composites, functions, operators, sizes.

    Args:
        name: The name of its entrypoint.
        model: The model.
        needs: The oldest onnxruntime with all its contrib ops; empty without such ops.
    """
    io = interface(model)
    rows = [("input", i.name, i.type_text) for i in io.inputs]
    rows += [("state", s.name, s.type_text) for s in io.states]
    rows += [("output", o.name, o.type_text) for o in io.outputs]
    size = weights(model)[1]
    opset = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items()
    )
    optimized_for = model.metadata_props.get(TARGET)
    target = f", optimized for {optimized_for}" if optimized_for else ""
    if needs:
        target += f", needs onnxruntime {needs} or later"
    functions = [(op_name(*key[:2]), len(body)) for key, body in model.functions.items()]
    tables = [
        (("composite", "calls"), list(composite_calls(model).items())),
        (("operator", "count"), list(op_histogram(model).items())),
        (("function", "nodes"), functions),
    ]
    version = f"IR {model.ir_version}, {opset}"
    return "\n\n".join(
        [
            printable(f"entrypoint {name}: {size_text(size)} of weights, {version}{target}"),
            render(("", "name", "type"), rows, indent="  "),
            *(render(header, table, indent="  ") for header, table in tables if table),
        ]
    )
