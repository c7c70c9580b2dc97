"""A mapping from tensors by identity."""

from __future__ import annotations

from typing import Generic, TypeVar

import onnx_graphsurgeon as gs

T = TypeVar("T")


class TensorTable(Generic[T]):
    """A mapping from tensors by identity, since graph-surgeon compares tensors by name.

    It keeps its tensors alive, since a new tensor may get the id of a deleted one.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[int, tuple[gs.Tensor, T]] = {}

    def __contains__(self, tensor: gs.Tensor) -> bool:
        """Whether there is an entry for this tensor object."""
        return id(tensor) in self._entries

    def __getitem__(self, tensor: gs.Tensor) -> T:
        """Return the entry of a tensor.

        Raises:
            KeyError: There is no entry.
        """
        return self._entries[id(tensor)][1]

    def __setitem__(self, tensor: gs.Tensor, value: T) -> None:
        """Set the entry of a tensor."""
        self._entries[id(tensor)] = tensor, value

    def get(self, tensor: gs.Tensor) -> T | None:
        """Return the entry of a tensor; None if there is none."""
        entry = self._entries.get(id(tensor))
        return None if entry is None else entry[1]
