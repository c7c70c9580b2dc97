"""Running a built model with onnxruntime."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from .arguments import flattened
from .model import METADATA, Model
from .saving import save
from .values import ValueInfo, checked, from_ort, to_ort, to_torch


class Runner:
    """``call(...)``: runs a model in a session that is made at the first call."""

    def __init__(self, model: Model) -> None:
        """Take the model; nothing is built yet."""
        self._model = model
        self._lock = threading.Lock()
        self._session: Any = None
        self._inputs: dict[str, ValueInfo | None] = {}
        self._outputs: list[ValueInfo | None] = []
        self._optional: list[str] = []
        self._ranges: dict[str, dict[str, int]] = {}

    @property
    def session(self) -> Any:
        """The session of onnxruntime."""
        with self._lock:
            if self._session is None:
                self._session = self._opened()
        return self._session

    def _opened(self) -> Any:
        import onnxruntime

        built = self._model.build()
        metadata = {name: json.loads(built.metadata_props.get(key, "[]"))
                    for name, key in METADATA.items()}  # fmt: skip
        pairs = set(metadata["complex"])
        self._ranges = dict(metadata["ranges"])
        graph = built.graph
        self._inputs = {v.name or "": ValueInfo.of(v, pairs) for v in graph.inputs}
        self._optional = [name for name in self._inputs if name in graph.initializers]
        self._outputs = [ValueInfo.of(value, pairs) for value in graph.outputs]
        # A file instead of bytes, because weights above 1.5 GiB are in another file
        # beside it.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            save(built, path)
            return onnxruntime.InferenceSession(path)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the model on its function bodies.

        Args:
            *arguments: Torch tensors or arrays, in the structure that the exported function takes;
                of a model without such a structure, one for each input.
            **named: Arguments by name; also states, whose default is their first value.

        Returns:
            The output, or a tuple of them: torch tensors if an argument is one, or else arrays.

        Raises:
            CallError: If the arguments are not those that the model takes.
        """
        session = self.session
        required = {name: name for name in self._inputs if name not in self._optional}
        takes = required if self._model.takes is None else self._model.takes
        inputs = flattened(takes, arguments, named, self._optional)
        outputs = self._run(session, inputs)
        torch = sys.modules.get("torch")
        if torch is not None and any(
            isinstance(v, torch.Tensor) for v in inputs.values()
        ):
            outputs = [
                item if kind is None else to_torch(item, kind.element)
                for item, kind in zip(outputs, self._outputs, strict=True)
            ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _run(self, session: Any, given: dict[str, Any]) -> list[Any]:
        import onnxruntime

        sizes: dict[str, int] = {}
        feeds = {}
        for name, value in given.items():
            kind = self._inputs[name]
            feeds[name] = (
                value if kind is None else checked(value, kind, sizes, self._ranges)
            )
        kinds = [*self._inputs.values(), *self._outputs]
        # onnxruntime's Python makes no OrtValue of a sequence or of strings.
        if any(kind is None or kind.element == "string" for kind in kinds):
            results: list[Any] = session.run(None, feeds)
            return results
        values = {
            name: to_ort(onnxruntime, array, kind)
            for name, array in feeds.items()
            if (kind := self._inputs[name]) is not None
        }
        ort_values = session.run_with_ort_values(None, values)
        return [
            from_ort(value, kind)
            for value, kind in zip(ort_values, self._outputs, strict=True)
            if kind is not None
        ]
