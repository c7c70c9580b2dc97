"""The user's decompositions, collected when the user's export function decomposes a program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.export import ExportedProgram

from coreai_onnx.export.compat.patches import patched

Table = dict[Any, Callable[..., Any]]


@contextmanager
def table_of_the_user() -> Iterator[Table]:
    """While active, collect the user's decompositions that ``run_decompositions`` is given.

    torch's decompositions are left out: their ops are lowered, or kept as composites.

    Yields:
        A table that is filled while the block runs.
    """
    found: Table = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_decompositions(
            self: ExportedProgram, decomp_table: Table | None = None, *args: Any, **kwargs: Any
        ) -> ExportedProgram:
            given = {} if decomp_table is None else dict(decomp_table.items())
            found.update({op: rule for op, rule in given.items() if not _is_torchs(rule)})
            made: ExportedProgram = original(self, decomp_table, *args, **kwargs)
            return made

        return run_decompositions

    with patched(ExportedProgram, "run_decompositions", wrap):
        yield found


def _is_torchs(rule: Any) -> bool:
    """Whether a decomposition belongs to torch."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    home = str(getattr(inspect.unwrap(rule), "__module__", "") or "torch")
    return home.partition(".")[0] == "torch"
