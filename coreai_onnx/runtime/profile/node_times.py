"""Where the time of a model goes: by node, operator, module and line of Python."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal, TypeVar

import onnx_ir as ir

from coreai_onnx.errors import Where
from coreai_onnx.messages import render
from coreai_onnx.model.pages.graph_page import Column, Key, write_page
from coreai_onnx.model.provenance.places import Place
from coreai_onnx.runtime.profile.peaks import Peaks
from coreai_onnx.runtime.profile.timing import Timing

Grouping = Literal["node", "operator", "module", "line"]
GROUPINGS: tuple[Grouping, ...] = ("node", "operator", "module", "line")
TORCH = "torch"
_K = TypeVar("_K")


@dataclass(frozen=True)
class NodeTime:
    """One node of onnxruntime's graph, or of torch's.

    Attributes:
        place: The node of the file that it belongs to.
        ran: The operator that ran, ``Gemm`` for a MatMul and an Add.
        seconds: Its duration in each run, 0 where it did not run.
        flops: Floating-point operations in the last run; see `coreai_onnx.model.work`.
        moved: Bytes that it read and wrote in the last run.
    """

    place: Place
    ran: str
    seconds: tuple[float, ...]
    flops: float = 0.0
    moved: float = 0.0

    @property
    def median(self) -> float:
        """The median duration in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Execution:
    """The runs of a model in one way.

    Attributes:
        timing: The durations of the runs; its name is ``bodies``, ``kernels`` or ``torch``.
        nodes: The nodes that ran.
        unplaced: Median seconds of the nodes that belong to no node of the file.
    """

    timing: Timing
    nodes: tuple[NodeTime, ...]
    unplaced: float = 0.0

    @property
    def name(self) -> str:
        """``bodies``, ``kernels`` or ``torch``."""
        return self.timing.name


@dataclass(frozen=True)
class Total:
    """The nodes of one group.

    Attributes:
        key: Name of the node, operator or module, or the line ``model.py:41``.
        where: The place of the first node.
        count: Number of nodes of the file.
        seconds: Sum of the median durations, by execution; executions without the group are absent.
        flops: Floating-point operations, of the last execution in onnxruntime.
        moved: Bytes, of the same.
    """

    key: str
    where: Where
    count: int
    seconds: Mapping[str, float]
    flops: float
    moved: float


@dataclass(frozen=True)
class Profile:
    """Durations of the nodes of a model, in one or several executions; prints as tables.

    Attributes:
        executions: The executions, torch's last.
        peaks: The limits of the machine, for the share of the roofline.
        model: The model that ran.
    """

    executions: tuple[Execution, ...]
    peaks: Peaks
    model: ir.Model = field(repr=False)

    @property
    def main(self) -> Execution:
        """The last execution in onnxruntime: the kernels, if they ran."""
        return [one for one in self.executions if one.name != TORCH][-1]

    def __getitem__(self, name: str) -> Execution:
        """Return an execution.

        Raises:
            KeyError: If there is no such execution.
        """
        for one in self.executions:
            if one.name == name:
                return one
        raise KeyError(name)

    def by(self, grouping: Grouping) -> tuple[Total, ...]:
        """Return the groups, the longest in `main` first.

        Args:
            grouping: ``"node"`` (of the file, a composite is one), ``"operator"``, ``"module"``
                (with the modules in it) or ``"line"`` (of Python).

        Raises:
            ValueError: If the grouping is unknown.
        """
        if grouping not in GROUPINGS:
            raise ValueError(f"group by {', '.join(GROUPINGS)}, not by {grouping!r}")
        totals = self._groups(_KEYS[grouping]).values()
        return tuple(sorted(totals, key=lambda x: -x.seconds.get(self.main.name, 0.0)))

    def _groups(self, keys: Callable[[Place], Iterable[tuple[_K, str]]]) -> dict[_K, Total]:
        groups: dict[_K, _Sum] = {}
        main = self.main
        for execution in self.executions:
            for node in execution.nodes:
                for key, label in keys(node.place):
                    group = groups.setdefault(key, _Sum(label, node.place.where))
                    # All executions do the same work, so that only one of them may count it.
                    group.add(execution, node, counts=execution is main)
        return {key: group.total() for key, group in groups.items()}

    def share(self, total: Total) -> float:
        """Return the time that the machine needs for the work of a group, relative to its time."""
        seconds = total.seconds.get(self.main.name, 0.0)
        return self.peaks.seconds(total.flops, total.moved) / seconds if seconds else 0.0

    def table(self, grouping: Grouping, limit: int | None = None) -> str:
        """Return the groups as a table, at most ``limit`` of them."""
        totals = self.by(grouping)
        names = [one.name for one in self.executions]
        # By operator, where each node counts once; a module contains the nodes of those inside.
        whole = sum(total.seconds.get(self.main.name, 0.0) for total in self.by("operator")) or 1.0
        rows = [_cells(total, names, self.main.name, whole, self) for total in totals[:limit]]
        header = (grouping, "nodes", *(f"{name} ms" for name in names), "share", *_RATES)
        code = grouping == "line"
        table = render((*header, "code") if code else header, [
            (*row, total.where.code) if code else row
            for row, total in zip(rows, totals, strict=False)
        ])  # fmt: skip
        left = len(totals) - len(rows)
        return f"{table}\n… and {left} more" if left else table

    @property
    def facts(self) -> tuple[str, ...]:
        """The durations of the runs, and the limits of the machine, as sentences."""
        return (*map(_headline, self.executions), f"machine: {self.peaks}")

    def columns(self) -> tuple[Column, ...]:
        """Return the times by node in milliseconds, and the least time that the machine needs."""
        totals: dict[Key, Total] = self._groups(lambda place: [(place.key, place.node)])
        columns = [
            Column(
                f"{one.name} ms",
                {k: t.seconds[one.name] * 1e3 for k, t in totals.items() if one.name in t.seconds},
                "ms",
            )
            for one in self.executions
        ]
        # The page is colored by its first column.
        main = columns.pop([one.name for one in self.executions].index(self.main.name))
        least = {k: self.peaks.seconds(t.flops, t.moved) * 1e3 for k, t in totals.items()}
        work = {k: t.flops for k, t in totals.items()}
        moved = {k: t.moved for k, t in totals.items()}
        limits = (Column("roofline ms", least, "ms"), Column("FLOP", work), Column("bytes", moved))
        return (main, *columns, *limits)

    def to_html(self, path: str | PathLike[str], title: str = "Profile") -> Path:
        """Write a page with the graph, colored by time, a table, and the lines of Python.

        Raises:
            SaveError: If it cannot be written.
        """
        return write_page(path, self.model, self.columns(), title=title, facts=self.facts)

    def __str__(self) -> str:
        """Return the durations of the runs, and the tables by operator and by line."""
        tables = [self.table("operator", 20), self.table("line", 20)]
        return "\n\n".join(["\n".join(self.facts), *tables])


_RATES = ("GFLOP/s", "GB/s", "of roofline")


class _Sum:
    def __init__(self, key: str, where: Where) -> None:
        self._key, self._where = key, where
        self._nodes: set[tuple[int, str]] = set()
        self._seconds: dict[str, float] = {}
        self._flops = self._moved = 0.0

    def add(self, execution: Execution, node: NodeTime, *, counts: bool) -> None:
        self._seconds[execution.name] = self._seconds.get(execution.name, 0.0) + node.median
        if execution.name != TORCH:
            self._nodes.add(node.place.key)
        if counts:
            self._flops += node.flops
            self._moved += node.moved

    def total(self) -> Total:
        count = len(self._nodes)
        return Total(self._key, self._where, count, self._seconds, self._flops, self._moved)


def _modules(place: Place) -> Iterable[tuple[object, str]]:
    """Return the module of a node and its parent modules, the root last."""
    parts = place.where.module.split(".") if place.where.module else []
    paths = (".".join(parts[:count]) for count in range(len(parts), -1, -1))
    return [(path, path or "(root)") for path in paths]


def _line(place: Place) -> Iterable[tuple[object, str]]:
    return [(place.where.source, place.where.source or "(unknown)")]


_KEYS: Mapping[Grouping, Callable[[Place], Iterable[tuple[object, str]]]] = {
    "node": lambda place: [(place.key, place.node)],
    "operator": lambda place: [(place.op, place.op)],
    "module": _modules,
    "line": _line,
}


def _cells(
    total: Total, names: Sequence[str], main: str, whole: float, profile: Profile
) -> Sequence[object]:
    seconds = total.seconds.get(main, 0.0)
    times = [f"{total.seconds[n] * 1e3:.3f}" if n in total.seconds else "" for n in names]
    rates = (
        f"{amount / seconds / 1e9:.1f}" if seconds else "" for amount in (total.flops, total.moved)
    )
    share = f"{profile.share(total):.0%}" if seconds else ""
    return total.key, total.count, *times, f"{seconds / whole:.1%}", *rates, share


def _headline(one: Execution) -> str:
    inside = sum(node.median for node in one.nodes) + one.unplaced
    text = f"{one.name}: {len(one.timing.seconds)} runs, median {one.timing.median * 1e3:.3f} ms"
    text += f", minimum {one.timing.min * 1e3:.3f} ms, in nodes {inside * 1e3:.3f} ms"
    return f"{text}, of these not placed {one.unplaced * 1e3:.3f} ms" if one.unplaced else text
