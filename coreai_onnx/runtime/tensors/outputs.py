"""The outputs of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from coreai_onnx.model.interface import type_text

Array = np.ndarray[Any, np.dtype[Any]]


class Outputs:
    """The outputs of one call: by name, by position, or unpacked in order.

    ```python
    outputs = session.run(x)
    outputs["logits"]  # by name
    outputs[0]  # by position
    logits, hidden = outputs  # unpacked
    dict(outputs)  # {"logits": ..., "hidden": ...}
    ```

    Values are numpy arrays that own their memory. bfloat16 is ``ml_dtypes.bfloat16``; complex32 is
    returned as complex64.

    Attributes:
        names: Output names in the order of the model, states left out.
    """

    def __init__(
        self, arrays: Mapping[str, Array], read_states: Callable[[], dict[str, Array]]
    ) -> None:
        """Store the user's outputs; states are read on access."""
        self._arrays = dict(arrays)
        self._read_states = read_states
        self.names = tuple(self._arrays)

    @property
    def states(self) -> dict[str, Array]:
        """Each state after this call, by the state's name; copied out of onnxruntime on access."""
        return self._read_states()

    @overload
    def __getitem__(self, key: str | int) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Array]: ...
    def __getitem__(self, key: str | int | slice) -> Array | Sequence[Array]:
        """Return an output by name or position, or a slice of them.

        Raises:
            KeyError: If no output has that name.
            IndexError: If there is no such position.
        """
        if isinstance(key, str):
            if key not in self._arrays:
                raise KeyError(f"no output {key!r}; there are {', '.join(self.names)}")
            return self._arrays[key]
        return tuple(self._arrays.values())[key]

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the values, so that the result can be unpacked."""
        return iter(self._arrays.values())

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self._arrays)

    def keys(self) -> tuple[str, ...]:
        """Return the names."""
        return self.names

    def values(self) -> tuple[Array, ...]:
        """Return the arrays in order."""
        return tuple(self._arrays.values())

    def items(self) -> tuple[tuple[str, Array], ...]:
        """Return (name, array) pairs in order."""
        return tuple(self._arrays.items())

    def __repr__(self) -> str:
        """Return names, dtypes and shapes."""
        texts = (
            f"{name}: {type_text(array.dtype.name, array.shape)}" for name, array in self.items()
        )
        return f"Outputs({', '.join(texts)})"
