"""The report of a run: rewrites per pass, and near misses."""

from __future__ import annotations

from dataclasses import dataclass, field

from coreai_onnx.messages import CELL_LIMIT, printable
from coreai_onnx.passes.engine.why import NearMiss


@dataclass(frozen=True)
class PassMiss:
    """A near miss and where it occurred.

    Attributes:
        pass_name: The pass that did not fire.
        scope: The graph: ``main``, or a function's ``domain::name``.
        miss: Reason, example node, and number of nodes.
    """

    pass_name: str
    scope: str
    miss: NearMiss


@dataclass
class PassReport:
    """The result of ``run_passes``.

    Attributes:
        counts: Rewrites per pass, in the order of the passes; 0 for passes without a rewrite.
        near_misses: Nodes of the final graph that passes nearly matched, and the reasons.
        rounds: The maximum number of rounds over one graph, the last of which changes nothing.
        nodes_before: Number of nodes in the model, its subgraphs and function bodies, before.
        nodes_after: The same number after.
    """

    counts: dict[str, int] = field(default_factory=dict)
    near_misses: tuple[PassMiss, ...] = ()
    rounds: int = 0
    nodes_before: int = 0
    nodes_after: int = 0

    @property
    def total(self) -> int:
        """The number of rewrites of all passes."""
        return sum(self.counts.values())

    def table(self) -> str:
        """Return the counts as a text table, passes without a rewrite left out."""
        fired = {name: count for name, count in self.counts.items() if count}
        width = max((len(name) for name in fired), default=0)
        lines = [f"nodes: {self.nodes_before} → {self.nodes_after} in {self.rounds} rounds"]
        lines += [f"  {name:<{width}}  {count:>6}" for name, count in fired.items()]
        return "\n".join(lines)

    def near_miss_table(self) -> str:
        """Return the near misses as a text table."""
        # Names come from the file: they may be of any length and have control characters.
        rows = [
            (
                m.pass_name,
                printable(f"{m.miss.count}x {m.miss.op}", CELL_LIMIT),
                printable(m.miss.reason, CELL_LIMIT),
                printable(f"{m.scope}: {m.miss.node}", CELL_LIMIT),
            )
            for m in self.near_misses
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        )

    def __str__(self) -> str:
        """Return the table of counts."""
        return self.table()
