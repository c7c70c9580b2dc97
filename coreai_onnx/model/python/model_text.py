"""The text of a model file: declarations, functions of composites and modules, the graph."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import onnxscript
from onnxscript import onnx_types

from coreai_onnx.errors import SaveError
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.model.python import builder
from coreai_onnx.model.python.blocks import BlockCall, BlockFunction, Item, Loop, module_items
from coreai_onnx.model.python.bodies import Body, BodyContext
from coreai_onnx.model.python.builder.model import IR_VERSION, METADATA
from coreai_onnx.model.python.calls import Callee, Calls, Kind, default_text
from coreai_onnx.model.python.constants import Constants
from coreai_onnx.model.python.hints import Hints
from coreai_onnx.model.python.identifiers import IdentifierScope, identifier, is_plain
from coreai_onnx.model.python.layout import (
    INDENT,
    WIDTH,
    Expression,
    Named,
    call,
    flat,
    keyed,
    laid_out,
    quoted,
)
from coreai_onnx.model.python.literals import annotation, arguments_text, metadata_text
from coreai_onnx.model.python.record import HIDDEN
from coreai_onnx.model.python.weights_file import digest_of
from coreai_onnx.model.standard_composites import KERNEL_FILES


class ModelText:
    """Writes the model file of a model."""

    def __init__(
        self,
        model: ir.Model,
        *,
        depth: int = 0,
        takes: Mapping[str, Any] | None = None,
    ) -> None:
        """Find the modules of the graph, and names for its functions.

        Args:
            model: The model.
            depth: Level of indentation; 1 in a file where all is in one function, whose weights
                are known by their digest.
            takes: The arguments of ``call(...)``, as `builder.arguments.flattened` takes them.
        """
        self.model = model
        self.depth = depth
        self.takes = takes
        self.constants = Constants(model)
        self.hints = Hints(read_code(model.metadata_props), model.graph)
        self.names = IdentifierScope()
        self.graph_name = self.names.new("main")
        self.functions = self._callees()
        self.opsets = self._opset_names()
        is_literal = self.constants.is_literal_node
        self.nodes = [node for node in model.graph if not is_literal(node)]
        self.items = module_items(self.nodes, set(model.graph.outputs), self.constants)
        self.modules = self._module_names()
        self.hints.several = {node for function in self.modules for node in function.several}

    def _callees(self) -> dict[ir.OperatorIdentifier, Callee]:
        callees = {}
        for key, function in self.model.functions.items():
            name = function.name
            if not is_plain(name) or self.names.taken(name):
                name = identifier(name.replace(".", "_"), "function")
            # Inputs and attributes are parameters of one Python function.
            names = IdentifierScope(value.name or "" for value in function.inputs)
            attributes = {n: _parameter(names, n, "attribute") for n in function.attributes}
            callees[key] = Callee(self.names.new(name), function, attributes)
        return callees

    def _opset_names(self) -> dict[str, str]:
        graphs = [self.model.graph, *(f.graph for f in self.model.functions.values())]
        nodes = [node for graph in graphs for node in graph.all_nodes()]
        others = {n.domain for n in nodes if n.op_identifier() not in self.functions} - {""}
        names = {"": "op"}
        for domain in sorted(others):
            names[domain] = self.names.new(identifier(domain, "domain"))
        return names

    def _module_names(self) -> dict[BlockFunction, str]:
        functions = list(dict.fromkeys(_functions_in(self.items)))
        names = {}
        seen: Counter[str] = Counter()
        # The function that is called most often gets the name without a number.
        for function in sorted(functions, key=lambda function: -function.calls):
            base = identifier(function.title, "module")
            seen[base] += 1
            if seen[base] > 1 and (index := _index(function.block.path)):
                base = f"{base}_{index}"
            names[function] = self.names.new(base)
        return {function: names[function] for function in functions}

    # ---------------------------------------------------------------- the file
    def lines(self, title: str) -> list[str]:
        """Return the file, formatted as ``ruff format`` does.

        Args:
            title: First line of the file's documentation.
        """
        declarations, *parts = self.parts()
        body = [line for part in parts for line in ["", "", *part]]
        imports = imports_of([*declarations, *body])
        return [f'"""{title}"""', "", *imports, "", *declarations, *body]

    def parts(self) -> list[list[str]]:
        """Return the lines of the declarations, the functions and the graph."""
        parts = [self._function(key, callee) for key, callee in self.functions.items()]
        parts += [self._module(function, name) for function, name in self.modules.items()]
        parts.append(self._graph())
        return [self._declarations(), *parts]  # last, because tensors of attributes are weights

    def _declarations(self) -> list[str]:
        model = self.model
        items: list[Expression] = ["__file__"]
        opsets = [(domain, str(version)) for domain, version in model.opset_imports.items()]
        items.append(Named("opsets=", keyed(opsets)))
        if model.ir_version != IR_VERSION:
            items.append(f"ir_version={model.ir_version}")
        about = {"domain": model.domain, "doc_string": model.doc_string}
        items += [f"{name}={quoted(text)}" for name, text in about.items() if text]
        if model.model_version:
            items.append(f"model_version={model.model_version}")
        shown = {key: text for key, text in model.metadata_props.items() if key not in HIDDEN}
        for keyword, key in METADATA.items():
            if key in shown:
                items.append(Named(f"{keyword}=", metadata_text(shown.pop(key))))
        if shown:
            entries = [(key, metadata_text(text)) for key, text in shown.items()]
            items.append(Named("metadata=", keyed(entries)))
        # Only in a single file, whose weights may get lost or mixed up on their way.
        if self.depth and self.constants.weights:
            items.append(f"digest={quoted(digest_of(self.constants.weights))}")
        indent = INDENT * self.depth
        lines = []
        for domain, name in list(self.opsets.items())[1:]:
            lines.append(f"{indent}{name} = Opset({quoted(domain)})")
        lines += laid_out("model = ", call("Model", items), depth=self.depth)
        if self.constants.weights:
            lines.append(f"{indent}weights = model.weights")
        return lines

    # ---------------------------------------------------------------- functions of the model
    def _function(self, key: ir.OperatorIdentifier, callee: Callee) -> list[str]:
        function = callee.function
        # A local name must not hide a function that the body calls.
        names = IdentifierScope(self.names.all)
        value_names: dict[ir.Value, str] = {}
        parameters: list[Expression] = []
        for value in function.inputs:
            value_names[value] = _parameter(names, value.name or "", "value")
            parameters.append(value_names[value])
        keywords = self._keywords(callee, names)
        if keywords:
            parameters += ["*", *keywords]
        items = [node for node in function if not self.constants.is_literal_node(node)]
        context = self._context(names, value_names, function)
        self.hints.results = {v: identifier(v.name or "output") for v in function.outputs}
        body = Body(context, items, function.inputs, function.outputs, self.depth + 1)
        arguments, documentation = self._about_function(key, callee)
        return [
            *(INDENT * self.depth + line for line in _kernel(key)),
            *laid_out("@", call("model.function", arguments), depth=self.depth),
            *laid_out("def ", call(callee.name, parameters), ":", self.depth),
            *documentation,
            *body.write(),
        ]

    def _keywords(self, callee: Callee, names: IdentifierScope) -> list[Expression]:
        keywords: list[Expression] = []
        for name, attribute in callee.function.attributes.items():
            keyword = names.new(callee.attributes[name])
            assert keyword == callee.attributes[name]
            if attribute.value is None:
                keywords.append(keyword)
                continue
            text = default_text(attribute)
            if text is None:
                raise SaveError(
                    f"{callee.name}: a default of type {attribute.type.name} cannot be written as "
                    "Python"
                )
            keywords.append(Named(f"{keyword}=", text))
        return keywords

    def _about_function(
        self, key: ir.OperatorIdentifier, callee: Callee
    ) -> tuple[list[Expression], list[str]]:
        domain, name, overload = key
        function = callee.function
        arguments: list[Expression] = [quoted(domain)]
        if name != callee.name:
            arguments.append(quoted(name))
        if overload:
            arguments.append(f"overload={quoted(overload)}")
        # The order as well, because the built model must be the same in its bytes.
        if dict(function.opset_imports) != self._implied_opsets(function) or list(
            function.opset_imports
        ) != list(self._implied_opsets(function)):
            opsets = [(d, str(version)) for d, version in function.opset_imports.items()]
            arguments.append(Named("opsets=", keyed(opsets)))
        renamed = [(k, quoted(n)) for n, k in callee.attributes.items() if n != k]
        if renamed:
            arguments.append(Named("attributes=", keyed(renamed)))
        documentation = []
        doc = function.doc_string
        if doc and _is_simple(doc):
            documentation.append(f'{INDENT * (self.depth + 1)}"""{doc}"""')
        elif doc:
            arguments.append(f"doc={quoted(doc)}")
        if function.metadata_props:
            entries = [(k, metadata_text(text)) for k, text in function.metadata_props.items()]
            arguments.append(Named("metadata=", keyed(entries)))
        return arguments, documentation

    def _implied_opsets(self, function: ir.Function) -> dict[str, int]:
        opsets = {"": self.model.opset_imports.get("", 1)}
        for node in ir.traversal.RecursiveGraphIterator(function.graph):
            opsets.setdefault(node.domain, self.model.opset_imports.get(node.domain, 1))
        return opsets

    # ---------------------------------------------------------------- functions of modules
    def _module(self, function: BlockFunction, name: str) -> list[str]:
        names = IdentifierScope(self.names.all)
        value_names: dict[ir.Value, str] = {}
        for value in function.inputs:
            value_names[value] = names.new(self.hints.stem(value, function.block.path))
        parameters: list[Expression] = list(value_names.values())
        if function.has_weights:
            parameters.append("w")
        context = self._context(names, value_names)
        context.path = function.block.path
        context.weights = "w"
        nodes = function.block.nodes
        self.hints.results = {}
        results = [nodes[n].outputs[i] for n, i in function.outputs]
        lines = Body(context, function.items, function.inputs, results, self.depth + 1).write()
        shown = [context.value_names.get(value, "") for value in results]
        self.hints.returned[function] = [text if is_plain(text) else "" for text in shown]
        if len(results) > 1:
            pairs = zip(results, self.hints.returned[function], strict=True)
            self.hints.local_names |= {value: text for value, text in pairs if text}
        return [*laid_out("def ", call(name, parameters), ":", self.depth), *lines]

    # ---------------------------------------------------------------- the graph
    def _graph(self) -> list[str]:
        graph = self.model.graph
        names = IdentifierScope(self.names.all)
        value_names: dict[ir.Value, str] = {}
        parameters: list[Expression] = []
        renamed: list[tuple[str, Expression]] = []
        has_default = False
        for value in graph.inputs:
            name = value_names[value] = _parameter(names, value.name or "", "input")
            if name != value.name:
                renamed.append((name, quoted(value.name or "")))
            kind = annotation(value.type, value.shape)
            if kind is None:
                raise SaveError(f"input {value.name}: its type cannot be written as Python")
            text: Expression = Named(f"{name}: ", kind)
            if value.is_initializer():
                constant = self.constants.of(value)
                assert constant is not None
                text = f"{name}: {flat(kind)} = weights[{quoted(constant.key)}]"
                has_default = True
            # Python allows no parameter without a default after one with a default, except by
            # keyword.
            elif has_default and "*" not in parameters:
                parameters.append("*")
            parameters.append(text)
        self.hints.results = {
            v: v.name if v.name and is_plain(v.name) else identifier(v.name or "output")
            for v in graph.outputs
        }
        context = self._context(names, value_names)
        body = Body(context, self.items, graph.inputs, graph.outputs, self.depth + 1)
        outputs = [(v.name or "", annotation(v.type, v.shape) or "None") for v in graph.outputs]
        arguments: list[Expression] = [Named("outputs=", keyed(outputs))]
        if renamed:
            arguments.append(Named("inputs=", keyed(renamed)))
        if self.takes is not None:
            arguments.append(Named("takes=", arguments_text(self.takes)))
        return [
            *laid_out("@", call("model.graph", arguments), depth=self.depth),
            *laid_out("def ", call(self.graph_name, parameters), ":", self.depth),
            *body.write(),
        ]

    def _context(
        self,
        names: IdentifierScope,
        value_names: dict[ir.Value, str],
        function: ir.Function | None = None,
    ) -> BodyContext:
        versions = self.model.opset_imports if function is None else function.opset_imports
        parameters, kinds = {}, {}
        if function is not None:
            parameters = dict(self.functions[function.identifier()].attributes)
            kinds = {
                name: item.type if item.value is not None else Kind.UNDEFINED
                for name, item in function.attributes.items()
            }
        calls = Calls(
            self.constants, self.functions, self.opsets, versions,
            lambda name: f"weights[{quoted(name)}]", parameters, kinds,
        )  # fmt: skip
        return BodyContext(calls, self.hints, self.modules, (), names, value_names)


def _kernel(key: ir.OperatorIdentifier) -> list[str]:
    """Return a comment that names the kernel of a composite; no line if it has none."""
    file = KERNEL_FILES.get(key[1].partition(".")[0]) if key[0] == STANDARD_DOMAIN else None
    return [] if file is None else [f"# kernel: {file}"]


def _parameter(names: IdentifierScope, name: str, default: str) -> str:
    if is_plain(name) and not names.taken(name):
        return names.new(name)
    return names.new(identifier(name, default))


def _functions_in(items: Iterable[Item]) -> Iterable[BlockFunction]:
    """Yield the functions that are called, each after those that it calls."""
    for item in items:
        calls = item.calls if isinstance(item, Loop) else [item]
        for called in calls:
            if isinstance(called, BlockCall):
                yield from _functions_in(called.function.items)
                yield called.function


def _index(path: Sequence[str]) -> str:
    """Return the index of the innermost list in a module path; empty if there is none."""
    indices = (part.rpartition(".")[2] for part in reversed(path) if "." in part)
    return next(indices, "")


def _is_simple(doc: str) -> bool:
    """Whether a text is a docstring that neither Python nor a formatter would change."""
    return (
        doc.isprintable()
        and doc == doc.strip()
        and not set(doc) & {'"', "\\"}
        and len(doc) + len(INDENT) + 6 <= WIDTH + 40
    )


def imports_of(lines: Sequence[str]) -> list[str]:
    """Return the imports of lines of a model file."""
    tree = ast.parse(textwrap.dedent("\n".join(lines)))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    types = sorted(n for n in names if n in ir.DataType.__members__ and hasattr(onnx_types, n))
    public = [name for name in types if name in onnxscript.__all__]
    if "ir" in names:
        public.append("ir")
    mine = sorted(names & set(builder.__all__))
    # onnxscript does not export all of its types at the top.
    others = [name for name in types if name not in onnxscript.__all__]
    imports = []
    if public:
        imports += import_lines("onnxscript", public)
    if others:
        imports += import_lines("onnxscript.onnx_types", others)
    return [*imports, *([""] if imports else []), *import_lines("._builder", mine)]


def import_lines(module: str, names: Sequence[str]) -> list[str]:
    """Return the import of names from a module."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"{INDENT}{name}," for name in names), ")"]
