"""Where executed nodes come from: a copy of a model whose calls are inlined, with the callers.

onnxruntime inlines a function that has no kernel, and names the nodes after the function, not after
the call. In the copy the functions are inlined already, in the same way, and the name of each node
leads to its place in the file: the call in the main graph, and the path through the bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from coreai_onnx.errors import Where
from coreai_onnx.model.inventory import MODULE_DOMAIN, op_name
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE, SOURCE
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.model.standard.op_schemas import plain_domain

_MARK = "coreai.mark"
_TOKEN = re.compile(r"#(\d+)#")
_BODY = "module"
"""How the body of an externalized module calls the module itself, in the scopes of its nodes."""
_BODY_CLASS = "ModuleBody"


@dataclass(frozen=True)
class Place:
    """A node that is executed.

    Attributes:
        position: Position in the main graph of the node, or of the node that calls or holds it.
        node: The node as a reader of the file sees it: its name, after those of the calls of
            externalized modules around it. A composite is one node.
        op: Its operator, ``Add`` or ``ai.coreai::rms_norm``.
        where: Its module, class, source line and the text of the line.
        body: Path to the executed node in the body of a composite; empty for the node itself.
    """

    position: int
    node: str
    op: str
    where: Where
    body: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """What the executed nodes of one node of the file share."""
        return self.position, self.node


@dataclass(frozen=True)
class Marked:
    """A copy of a model in which the name of each node leads to its place.

    Attributes:
        model: The copy; it shares the weights.
        places: The places, by the number in the name.
    """

    model: ir.Model
    places: tuple[Place, ...]

    def number(self, name: str) -> int | None:
        """Return the number of the place that a name has, also the name of a fused node."""
        # Anywhere in the name: onnxruntime adds prefixes and suffixes to those of fused nodes.
        match = _TOKEN.search(name)
        number = int(match[1]) if match else len(self.places)
        return number if number < len(self.places) else None


def marked(model: ir.Model, inline: Callable[[ir.OperatorIdentifier], bool]) -> Marked:
    """Inline calls, and name each node by its place.

    Args:
        model: The model; it is not changed.
        inline: Whether the calls of a function are inlined.
    """
    copy = model.clone()
    code = read_code(model.metadata_props)
    originals, tops = _mark(copy)
    # Kept for `_chain`, because inlining removes functions from the model.
    bodies = dict(copy.functions)
    inlined = {key for key, function in bodies.items() if inline(key) and _fits(function, copy)}
    # Before the calls are inlined, which removes producers and renames outputs.
    outputs = [(value.name, value.producer()) for value in copy.graph.outputs]
    InlinePass(lambda function: function.identifier() in inlined)(copy)
    _keep_names(copy.graph, outputs)
    places = []
    for node in copy.graph.all_nodes():
        chain = [originals[number] for number in _chain(node, originals, bodies)]
        position = tops[int(node.metadata_props[_key(None)])]
        places.append(_place(position, chain, code))
        node.name = f"#{len(places) - 1}#"
    for graph in (copy.graph, *(function.graph for function in copy.functions.values())):
        for node in graph.all_nodes():
            node.metadata_props.clear()
    return Marked(copy, tuple(places))


def as_read(model: ir.Model) -> Marked:
    """Return a model as a reader sees it: externalized modules are inlined, composites are not."""
    return marked(model, lambda key: key[0] == MODULE_DOMAIN)


def places_by_value(model: Marked) -> dict[str, Place]:
    """Return the place of the node that computes each value of the main graph, by its name."""
    return {
        value.name or "": model.places[number]
        for node in model.model.graph
        if (number := model.number(node.name or "")) is not None
        for value in node.outputs
    }


def where_of(node: ir.Node, code: Mapping[str, str]) -> Where:
    """Return the module, class, source line and text of a node, as far as the model has them."""
    module, kind, source = (node.metadata_props.get(key, "") for key in (SCOPE, CLASS, SOURCE))
    return Where(module, kind, source, code.get(source, "").strip())


def label_of(node: ir.Node) -> str:
    """Return the name of a node, or of its results if it has none."""
    return node.name or "→ " + ", ".join(value.name or "?" for value in node.outputs)


def _fits(function: ir.Function, model: ir.Model) -> bool:
    """Return whether a function can be inlined: its opsets are the model's, no graph is passed."""
    opsets = {plain_domain(d): version for d, version in model.opset_imports.items()}
    imports = {plain_domain(d): version for d, version in function.opset_imports.items()}
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return all(opsets.get(d, version) == version for d, version in imports.items()) and not any(
        attribute.type in graphs for attribute in function.attributes.values()
    )


def _key(function: ir.OperatorIdentifier | None) -> str:
    return f"{_MARK}{function}"


def _mark(model: ir.Model) -> tuple[list[ir.Node], dict[int, int]]:
    """Give every node a number under a key of its body, so that inlining keeps those of callers.

    Returns:
        The node of each number, and the position in the main graph of each number there.
    """
    originals: list[ir.Node] = []
    tops: dict[int, int] = {}
    roots = [(None, model.graph), *model.functions.items()]
    for key, root in roots:
        for position, top in enumerate(root):
            for node in (top, *(node for graph in subgraphs(top) for node in graph.all_nodes())):
                if key is None:
                    tops[len(originals)] = position
                node.metadata_props[_key(key)] = str(len(originals))
                originals.append(node)
    return originals, tops


def _chain(
    node: ir.Node, originals: Sequence[ir.Node], bodies: Mapping[ir.OperatorIdentifier, ir.Function]
) -> Iterator[int]:
    """Yield the numbers of the call in the main graph, of the calls below it, and of the node."""
    key = _key(None)
    # Inlining adds the metadata of a call to the nodes of the body.
    while key in node.metadata_props:
        number = int(node.metadata_props[key])
        yield number
        identifier = originals[number].op_identifier()
        if identifier not in bodies:
            return
        key = _key(identifier)


def _place(position: int, chain: Sequence[ir.Node], code: Mapping[str, str]) -> Place:
    outer = [i for i, node in enumerate(chain[:-1]) if node.domain != MODULE_DOMAIN]
    seen = outer[0] if outer else len(chain) - 1
    where = where_of(chain[0], code)
    for node in chain[1 : seen + 1]:
        where = _within(where, where_of(node, code))
    op = op_name(chain[seen].domain, chain[seen].op_type)
    names = [label_of(node) for node in chain]
    return Place(position, "/".join(names[: seen + 1]), op, where, "/".join(names[seen + 1 :]))


def _within(caller: Where, inner: Where) -> Where:
    """Return the place of a node in the body of an externalized module that a caller calls."""
    head, _, rest = inner.module.partition(".")
    relative = rest if head == _BODY else inner.module
    module = ".".join(part for part in (caller.module, relative) if part)
    is_own = inner.module_class not in ("", _BODY_CLASS)
    kind = inner.module_class if is_own else caller.module_class
    line = inner if inner.source else caller
    return Where(module, kind, line.source, line.code)


def _keep_names(graph: ir.Graph, outputs: Sequence[tuple[str | None, ir.Node | None]]) -> None:
    """Give the outputs of a graph their names again: a body may return one of its inputs.

    Args:
        graph: The graph after the calls were inlined.
        outputs: Name of each output, and the node that computed it before.
    """
    for position, (name, producer) in enumerate(outputs):
        value = graph.outputs[position]
        if value.name == name or producer is None:
            continue
        copy = ir.node("Identity", [value])
        copy.metadata_props[_key(None)] = producer.metadata_props[_key(None)]
        output = copy.outputs[0]
        output.name, output.type, output.shape = name, value.type, value.shape
        graph.append(copy)
        graph.outputs[position] = output
