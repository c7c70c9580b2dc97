"""The body of a Python function: statements for the nodes of a graph, in their order."""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.python.blocks import BlockCall, BlockFunction, Item, Loop
from coreai_onnx.model.python.calls import Calls
from coreai_onnx.model.python.folding import (
    LONGEST,
    folded_values,
    inputs_of,
    last_uses,
    outputs_of,
)
from coreai_onnx.model.python.hints import Hints
from coreai_onnx.model.python.identifiers import IdentifierScope, identifier
from coreai_onnx.model.python.layout import (
    INDENT,
    WIDTH,
    Bracket,
    Expression,
    Named,
    call,
    comment,
    flat,
    laid_out,
    quoted,
)
from coreai_onnx.model.python.literals import annotation
from coreai_onnx.model.standard.model_protos import subgraphs

MOST_TARGETS = 6
"""A node with more results than this is assigned to one name, a tuple."""


_REARRANGING = frozenset(
    "Cast Reshape Transpose Expand Squeeze Unsqueeze Flatten Identity CastLike".split()
)
"""Operators whose output keeps the name of its input: they change only its type or shape."""


@dataclass
class BodyContext:
    """What the statements of a function may use.

    Attributes:
        calls: How operators are called.
        hints: Names for values.
        modules: Names of the modules' functions.
        path: The module whose weights ``w`` has.
        names: The names in use.
        value_names: Values to their names.
        weights: Name of the weights, ``w`` in the function of a module.
    """

    calls: Calls
    hints: Hints
    modules: Mapping[BlockFunction, str]
    path: tuple[str, ...]
    names: IdentifierScope
    value_names: MutableMapping[ir.Value, str]
    weights: str = "weights"


class Body:
    """Writes the statements of one function."""

    def __init__(
        self,
        context: BodyContext,
        items: Sequence[Item],
        parameters: Sequence[ir.Value],
        results: Sequence[ir.Value],
        depth: int = 1,
    ) -> None:
        """Prepare the statements.

        Args:
            context: What they may use.
            items: Nodes, calls and loops in order; without constants.
            parameters: What the function takes; their names are free after their last use.
            results: What the function returns.
            depth: Level of indentation.
        """
        self.context = context
        self.items = items
        self.results = list(results)
        self.depth = depth
        self.lines: list[str] = []
        self._last = last_uses(items, self.results)
        # Empty at first, because `_sketched` reads it while `folded_values` runs.
        self._folded: set[ir.Value] = set()
        self._folded = folded_values(items, self.results, self._sketched, context.hints)
        self._maker = {value: item for item in items for value in outputs_of(item)}
        self._source = ""
        self._own: set[ir.Value] = set()
        self._kept: list[ir.Value] = []
        self._queue: list[tuple[int, int]] = []  # a heap: last use, index in _kept
        self._released: set[ir.Value] = set()
        for value in parameters:
            if value in self._last:
                self._keep(value)
        names = context.hints.results.items()
        self._output_names = {value: name for value, name in names if value in self.results}

    def _sketched(self, item: Item) -> Expression:
        """Return an item as Python before the values have names."""
        if isinstance(item, BlockCall):
            return self._module_call(item, [self._sketch(value) for value in item.inputs])
        assert isinstance(item, ir.Node)
        inputs = [self._sketch(value) for value in item.inputs]
        return call(
            self.context.calls.head(item), [*inputs, *self.context.calls.keywords(item, {})]
        )

    def _sketch(self, value: ir.Value | None) -> Expression:
        is_open = value is not None and value not in self.context.value_names
        if is_open and self.context.calls.constants.of(value) is None:
            assert value is not None
            return self.context.hints.stem(value, self.context.path)
        return self.value(value)

    def _module_call(self, item: BlockCall, arguments: list[Expression]) -> Expression:
        if item.function.has_weights:
            rest = ".".join(item.path[len(self.context.path) :])
            arguments = [*arguments, f"{self.context.weights}[{quoted(rest)}]"]
        return call(self.context.modules[item.function], arguments)

    def write(self) -> list[str]:
        """Return the lines of the body."""
        for position, item in enumerate(self.items):
            outputs = outputs_of(item)
            if len(outputs) == 1 and outputs[0] in self._folded:
                continue
            is_last = position == len(self.items) - 1
            if isinstance(item, Loop):
                self._loop(item, position)
            elif is_last and self._ends(item, outputs):
                self._folded.update(outputs)
                self._comment(item)
                break
            else:
                self._assign(item, position)
        self._return(self.items[-1] if self.items else None)
        return self.lines

    def _ends(self, item: Item, outputs: list[ir.Value]) -> bool:
        """Whether the last item is written in the return statement."""
        # The functions of its graphs are statements, which come before the one that uses them.
        if isinstance(item, ir.Node) and any(subgraphs(item)):
            return False
        if outputs == self.results:
            return True
        is_one = len(outputs) == 1 and self.results.count(outputs[0]) == 1
        return is_one and len(flat(self._sketched(item))) < LONGEST

    # ---------------------------------------------------------------- statements
    def _comment(self, item: Item) -> None:
        """Append comments with the lines that an expression comes from."""
        for value in () if isinstance(item, Loop) else inputs_of(item):
            if value in self._folded:
                self._comment(self._maker[value])
        source = self.context.hints.shown_source(item)
        if not source or source == self._source:
            return
        self._source = source
        code = self.context.hints.code(source)
        text = comment(f"{source}: {code}" if code else source)
        room = WIDTH - len(INDENT) * self.depth
        shown = text if len(text) <= room else f"{text[: room - 2].rstrip()} …"
        self.lines.append(INDENT * self.depth + shown)

    def _assign(self, item: Item, position: int) -> None:
        outputs = outputs_of(item)
        expression = self._expression(item)
        self._comment(item)
        # Before the targets get names: the result may take the name of what the item used last.
        self._release(position)
        used = [value in self._last for value in outputs]
        if len(outputs) > MOST_TARGETS:
            name = self.context.names.new(f"{self._hint(item, outputs[0])}_parts")
            for index, value in enumerate(outputs):
                self.context.value_names[value] = f"{name}[{index}]"
            targets = name
        else:
            names = [
                self._named(value, self._hint(item, value)) if is_used else "_"
                for value, is_used in zip(outputs, used, strict=True)
            ]
            targets = ", ".join(names)
        self.lines += laid_out(f"{targets} = ", expression, depth=self.depth)

    def _hint(self, item: Item, value: ir.Value) -> str:
        if value in self._output_names:
            return self._output_names[value]
        hints = self.context.hints
        return (
            hints.assigned(item)
            or self._rearranged(item)
            or hints.variable(item, value, self.context.path)
        )

    def _rearranged(self, item: Item) -> str:
        """Return the name of what an item only rearranges, if that value is no longer needed."""
        while isinstance(item, ir.Node) and item.op_type in _REARRANGING and item.inputs:
            value = item.inputs[0]
            if value in self._folded:
                assert value is not None
                item = self._maker[value]
                continue
            if value in self._released:
                return self.context.value_names[value]
            return ""
        return ""

    def _named(self, value: ir.Value, hint: str) -> str:
        name = self.context.names.new(hint)
        self.context.value_names[value] = name
        self._keep(value)
        return name

    def _keep(self, value: ir.Value) -> None:
        """Let the name of a value be used again after the item that uses the value last."""
        self._own.add(value)
        heapq.heappush(self._queue, (self._last[value], len(self._kept)))
        self._kept.append(value)

    def _release(self, position: int) -> None:
        """Free the names of values that are not used after this item."""
        self._released.clear()
        while self._queue and self._queue[0][0] <= position:
            value = self._kept[heapq.heappop(self._queue)[1]]
            if value in self._own:
                self._own.discard(value)
                self._released.add(value)
                self.context.names.release(self.context.value_names[value])

    def _return(self, last: Item | None) -> None:
        if (
            last is not None
            and outputs_of(last) == self.results
            and self.results[0] in self._folded
        ):
            self.lines += laid_out("return ", self._expression(last), depth=self.depth)
            return
        texts = [self.value(value) for value in self.results]
        if len(texts) == 1:
            self.lines += laid_out("return ", texts[0], depth=self.depth)
            return
        line = f"{INDENT * self.depth}return {', '.join(map(flat, texts)) or '()'}"
        if len(line) <= WIDTH:
            self.lines.append(line)
        else:
            self.lines += laid_out("return ", Bracket("", tuple(texts)), depth=self.depth)

    # ---------------------------------------------------------------- loops
    def _loop(self, loop: Loop, position: int) -> None:
        first, last = loop.calls[0], loop.calls[-1]
        inputs = [self.value(value) for value in first.inputs]
        names = self.context.names
        for place in loop.carried:
            value = first.inputs[place]
            # Nothing reads the value after the loop, so that the loop may assign to its name.
            if value in self._own and self._last[value] <= position:
                self._own.discard(value)
                continue
            name = names.new(self.context.hints.stem(value, self.context.path))
            self.lines += laid_out(f"{name} = ", inputs[place], depth=self.depth)
            inputs[place] = name
        self._release(position)
        back = {output: place for place, output in loop.carried.items()}
        targets = []
        for number, value in enumerate(last.outputs):
            if number in back:
                name = flat(inputs[back[number]])
                self.context.value_names[value] = name
                if value in self._last:
                    self._keep(value)
                else:
                    names.release(name)
            elif value in self._last:
                name = self._named(value, self.context.hints.stem(value, self.context.path))
            else:
                name = "_"
            targets.append(name)
        counter = "_"
        if first.function.has_weights:
            counter = names.new("i")
            # Nothing reads the counter after the loop.
            names.release(counter)
            inputs.append(self._weights_in_loop(first.path, counter))
        start, end = (int(c.path[-1].rpartition(".")[2]) for c in (first, last))
        span = f"{start}, {end + 1}" if start else f"{end + 1}"
        self.lines.append(f"{INDENT * self.depth}for {counter} in range({span}):")
        expression = call(self.context.modules[first.function], inputs)
        self.lines += laid_out(f"{', '.join(targets)} = ", expression, depth=self.depth + 1)
        self._source = ""

    def _weights_in_loop(self, path: tuple[str, ...], counter: str) -> str:
        name = ".".join(path[len(self.context.path) :]).rpartition(".")[0]
        if all(part.isidentifier() or part.isdigit() for part in name.split(".")):
            return f'{self.context.weights}[f"{name}.{{{counter}}}"]'
        return f"{self.context.weights}[{quoted(name + '.')} + str({counter})]"

    # ---------------------------------------------------------------- expressions
    def value(self, value: ir.Value | None) -> Expression:
        """Return a value as Python: its name, a constant, a weight, or what makes it."""
        if value is None:
            return "None"
        if value in self._folded:
            return self._expression(self._maker[value])
        if value in self.context.value_names:
            return self.context.value_names[value]
        constant = self.context.calls.constants.of(value)
        if constant is None:
            raise KeyError(value.name)
        return self.weight(constant.key) if constant.text is None else constant.text

    def weight(self, name: str) -> str:
        """Return the expression of a weight."""
        prefix = "".join(f"{part}." for part in self.context.path)
        if prefix and self.context.weights == "w" and name.startswith(prefix):
            return f"w[{quoted(name[len(prefix) :])}]"
        return f"weights[{quoted(name)}]"

    def _expression(self, item: Item) -> Expression:
        assert not isinstance(item, Loop)
        if isinstance(item, BlockCall):
            return self._module_call(item, [self.value(value) for value in item.inputs])
        assert isinstance(item, ir.Node)
        branches = self._branches(item)
        inputs = [self.value(value) for value in item.inputs]
        calls = self.context.calls
        return call(calls.head(item), [*inputs, *calls.keywords(item, branches)])

    def _branches(self, node: ir.Node) -> dict[int, str]:
        """Write the functions of a node's graphs before it; return their names."""
        names = {}
        for name, attribute in node.attributes.items():
            for graph in attribute_graphs(attribute):
                unique = self.context.names.new(identifier(name, "branch"))
                names[id(graph)] = unique
                self._branch(unique, graph)
        return names

    def _branch(self, name: str, graph: ir.Graph) -> None:
        names = self.context.names.inner()
        value_names = ChainMap({}, self.context.value_names)
        parameters: list[Expression] = []
        for value in graph.inputs:
            value_names[value] = names.new(self.context.hints.stem(value, self.context.path))
            kind = annotation(value.type, value.shape)
            text = value_names[value]
            parameters.append(text if kind is None else Named(f"{text}: ", kind))
        context = BodyContext(
            self.context.calls, self.context.hints, self.context.modules, self.context.path,
            names, value_names, self.context.weights,
        )  # fmt: skip
        is_literal = self.context.calls.constants.is_literal_node
        items = [node for node in graph if not is_literal(node)]
        lines = Body(context, items, graph.inputs, graph.outputs, self.depth + 1).write()
        if self.lines and self.lines[-1]:
            self.lines.append("")
        self.lines += laid_out("def ", call(name, parameters), ":", self.depth)
        self.lines += [*lines, ""]
        self._source = ""
