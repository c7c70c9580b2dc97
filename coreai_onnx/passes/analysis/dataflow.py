"""Forward data-flow analysis: what is known of a tensor follows from the inputs of its producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import is_standard, maker

T = TypeVar("T")


class ForwardAnalysis(ABC, Generic[T]):
    """Derives a fact about each tensor that is asked for, and caches it.

    Producers are visited without recursion: the chain of a cache length may be long.
    """

    def __init__(self) -> None:
        self._known: dict[gs.Tensor, T | None] = {}

    @abstractmethod
    def of_constant(self, constant: gs.Constant) -> T | None:
        """Return the fact about a constant."""

    @abstractmethod
    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        """Return the tensors that a standard node derives its fact from; None without a rule."""

    @abstractmethod
    def transfer(self, node: gs.Node, facts: list[T | None]) -> T | None:
        """Return the fact about the result of a node, given the facts about its operands."""

    def of(self, tensor: gs.Tensor) -> T | None:
        """Return the fact about a tensor; None if nothing is known."""
        # This ends because graphs have no cycles, which `integrity.check` ensures after each pass.
        stack = [tensor]
        while stack:
            current = stack[-1]
            waiting = [] if current in self._known else self._visit(current)
            if waiting:
                stack.extend(waiting)
            else:
                stack.pop()
        return self._known[tensor]

    def _visit(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Derive the fact about a tensor, or return the operands whose facts are needed first."""
        node, fact = maker(tensor), None
        operands = None
        if isinstance(tensor, gs.Constant):
            fact = self.of_constant(tensor)
        elif node is not None and is_standard(node, node.op):
            operands = self.operands(node)
        if node is not None and operands is not None:
            waiting = [one for one in operands if one not in self._known]
            if waiting:
                return waiting
            fact = self.transfer(node, [self._known[one] for one in operands])
        # None is cached too: most tensors are unknown to an analysis, and each reader asks again.
        self._known[tensor] = fact
        return []
