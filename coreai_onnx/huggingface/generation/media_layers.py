"""Layers of models of pictures or sound that sessions compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.decoding import wide_tensor
from coreai_onnx.runtime.sessions.session import Session


class InSession(torch.nn.Module):
    """A layer that a function computes."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        """Take the function."""
        super().__init__()
        self.compute = compute

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results."""
        return self.compute(*args, **kwargs)


class Pending:
    """The result of an encoder whose features the next layer returns.

    What transformers computes between both, such as a choice of layers, is in the file.
    """

    def __getattr__(self, name: str) -> Any:
        """Return itself, for any attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        """Return itself, for any index."""
        return self

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        """Return another one, for any function of torch."""
        return cls()


def run_session(
    session: Session, renamed: Mapping[str, str] | None = None, /, **arguments: Any
) -> list[torch.Tensor]:
    """Run a session on tensors, of which it takes those that it knows."""
    arguments = {(renamed or {}).get(name, name): x for name, x in arguments.items()}
    feeds = {
        info.name: arguments[info.name].numpy().astype(info.numpy_dtype)
        for info in session.inputs
        if arguments.get(info.name) is not None
    }
    missing = [info.name for info in session.inputs if info.name not in feeds]
    if missing:
        raise GenerationError(f"the encoder takes {', '.join(missing)}, which the inputs lack")
    return [wide_tensor(x) for x in session.run(**feeds)]
