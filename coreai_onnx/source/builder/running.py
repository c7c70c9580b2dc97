"""Running a built model with onnxruntime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .model import Model
from .saving import save


class Runner:
    """A session of a model that is made at the first call."""

    def __init__(self, model: Model) -> None:
        """Take the model; nothing is built yet."""
        self._model = model
        self._session: Any = None

    @property
    def session(self) -> Any:
        """The session of onnxruntime."""
        if self._session is None:
            import onnxruntime

            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                save(self._model.build(), path)
                self._session = onnxruntime.InferenceSession(path)
        return self._session

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the model on its function bodies.

        Args:
            *arguments: Arrays for the inputs, in order.
            **named: Arrays by the names of the inputs.

        Returns:
            The output, or a tuple of them.
        """
        names = [item.name for item in self.session.get_inputs()]
        feeds = dict(zip(names, arguments, strict=False)) | named
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        outputs = self.session.run(None, arrays)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
