"""The methods of a program that run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.errors import StagingError
from coreai_onnx.model.metadata import MAIN
from coreai_onnx.runtime.libraries.library import CustomOps, library_paths
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Outputs
from coreai_onnx.targets.providers import Choice


class Runnable:
    """Models by entrypoint, which run in sessions that are kept until the models change.

    Attributes:
        models: Entrypoint to ``onnx_ir.Model``.
    """

    def __init__(self, models: dict[str, ir.Model]) -> None:
        """Hold the models, at least one."""
        self.models = models
        self._sessions: dict[Any, dict[str, Session]] = {}

    def session(
        self,
        entrypoint: str | None = None,
        *,
        kernels: bool | None = None,
        custom_ops: Sequence[CustomOps] = (),
        provider: Choice | None = None,
    ) -> Session:
        """Return the session that `run` uses; the entrypoints share states of one name.

        Raises:
            StagingError: If there is no such entrypoint.
            SessionError: If the session cannot be created.
        """
        name = self._choose(entrypoint)
        settings: dict[str, Any] = {
            "kernels": kernels,
            "custom_ops": custom_ops,
            "providers": provider,
        }
        # The options of a provider are a mapping, which cannot be part of a key.
        key = kernels, repr(provider), *library_paths(custom_ops)
        opened = self._sessions.setdefault(key, {})
        if name not in opened:
            other = next(iter(opened.values()), None)
            new = None if other is None else other.entrypoint(name)
            opened[name] = new or Session(self, entrypoint=name, **settings)
        return opened[name]

    def run(
        self,
        *args: object,
        entrypoint: str | None = None,
        kernels: bool | None = None,
        custom_ops: Sequence[CustomOps] = (),
        provider: Choice | None = None,
        **named: object,
    ) -> Outputs:
        """Run an entrypoint once; see `Session.run`.

        Args:
            *args: The arguments of the module, nested as there, or the inputs in order.
            entrypoint: Which entrypoint; None for the only one or ``main``.
            kernels: Whether to use native kernels, as for `coreai_onnx.session`.
            custom_ops: Custom op libraries.
            provider: The execution provider.
            **named: Arguments, inputs and states by name.

        Raises:
            InputError: If a name, dtype, rank or shape is wrong.
            SessionError: If the session cannot be created or run.
        """
        how: dict[str, Any] = {"kernels": kernels, "custom_ops": custom_ops, "provider": provider}
        return self.session(entrypoint, **how).run(*args, **named)

    def _close_sessions(self) -> None:
        """Close the sessions, which hold the models as they were."""
        self._sessions.clear()

    def _choose(self, entrypoint: str | None) -> str:
        if entrypoint is None and len(self.models) == 1:
            return next(iter(self.models))
        name = MAIN if entrypoint is None else entrypoint
        if name not in self.models:
            what = "say which entrypoint" if entrypoint is None else f"no entrypoint {entrypoint!r}"
            raise StagingError(f"{what}; there are {', '.join(self.models)}")
        return name
