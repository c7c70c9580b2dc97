"""Sessions on a provider that record where each node runs, and why one is on the CPU."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.targets.coverage import declared

CPU = "CPUExecutionProvider"
WEBGPU, CUDA = "WebGpuExecutionProvider", "CUDAExecutionProvider"
_OPTIONS = {CUDA: {"use_tf32": "0"}}
"""By default, onnxruntime-gpu multiplies float32 with mantissas of 10 bits; torch does not."""
NO_KERNEL, PREFERRED, REFUSED = "no kernel", "beside values on the CPU", "kernel refuses the node"
_NOT_FOUND = re.compile(
    r"(?:webgpu|CUDA) kernel not found in registries for Op type: (\S+) node name: (.*)"
)
_FORCED = re.compile(r"Force fallback to CPU execution for node: (\S*)")
_COPIES = ("MemcpyFromHost", "MemcpyToHost")
_ENDING = "_kernel_time"


@dataclass
class Placement:
    """Where the nodes of one run ran.

    Attributes:
        device: Number of nodes on the provider.
        copies: Number of copies between the CPU and the provider.
        declared: Number of nodes that are on the CPU on purpose; see `targets.coverage.declared`.
        others: The other nodes on the CPU: ``op(dtypes): reason``, with their numbers.
    """

    device: int = 0
    copies: int = 0
    declared: int = 0
    others: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a line of results."""
        return {
            "device": self.device,
            "copies": self.copies,
            "declared": self.declared,
            "others": dict(sorted(self.others.items())),
        }


class Traced:
    """A session on a provider that is profiled, and what onnxruntime logged when it opened it."""

    def __init__(
        self, provider: str, model: Any, options: ort.SessionOptions, **settings: Any
    ) -> None:
        # The functions of a file have the opset of its graph.
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else _load(model)
        self._opset = next(one.version for one in proto.opset_import if not one.domain)
        self._provider = provider
        self._folder = tempfile.TemporaryDirectory(prefix="provider_")
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        optimized = Path(self._folder.name) / "optimized.onnx"
        options.optimized_model_filepath = str(optimized)
        options.log_severity_level = 1  # GetCapability logs the nodes it leaves to the CPU
        with _stderr_in(Path(self._folder.name) / "log") as log:
            self.ort = ort.InferenceSession(
                model, options, providers=[(provider, _OPTIONS.get(provider, {})), CPU], **settings
            )
        text = log.read_text(errors="replace")
        self._missing = {(op, name.strip()) for op, name in _NOT_FOUND.findall(text)}
        self._forced = set(_FORCED.findall(text))
        self._declared = _declared(optimized)

    def placements(self) -> list[Placement]:
        """End the profile and return where the nodes of each run ran; runs follow each other."""
        trace = Path(self.ort.end_profiling()).read_text(encoding="utf-8")
        self._folder.cleanup()
        events = [event for event in json.loads(trace) if "dur" in event]
        runs = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: e["ts"])
        nodes = [e for e in events if "provider" in e.get("args", {})]
        return [self._placement([e for e in nodes if _is_within(e, run)]) for run in runs]

    def _placement(self, events: Sequence[dict[str, Any]]) -> Placement:
        found = Placement()
        # The nodes of a loop run several times and count once.
        once = {(e["name"], e["args"].get("node_index")): e for e in events}
        for event in once.values():
            facts = event["args"]
            if facts["op_name"] in _COPIES:
                found.copies += 1
            elif facts["provider"] == self._provider:
                found.device += 1
            elif event["name"].removesuffix(_ENDING) in self._declared:
                found.declared += 1
            else:
                found.others[self._reason(event["name"].removesuffix(_ENDING), facts)] += 1
        return found

    def _reason(self, name: str, facts: dict[str, Any]) -> str:
        op = facts["op_name"]
        dtypes = dict.fromkeys(k for one in facts["input_type_shape"] for k in one)
        if (op, name) in self._missing:
            reason = NO_KERNEL
        else:
            reason = PREFERRED if name in self._forced else REFUSED
        # A kernel may end with an earlier version of the operator.
        known = onnx.defs.has(op) and onnx.defs.get_schema(op, self._opset).since_version
        return f"{op}{f'-{known}' if known else ''}({', '.join(dtypes)}): {reason}"


@contextmanager
def sessions_on(provider: str) -> Iterator[list[Traced]]:
    """Open every session on a provider, also those of coreai_onnx; yields them in order."""
    opened: list[Traced] = []
    original = ort.InferenceSession

    def on_provider(
        model: Any, sess_options: Any = None, providers: Any = None, **settings: Any
    ) -> Any:
        del providers
        ort.InferenceSession = original
        try:
            opened.append(Traced(provider, model, sess_options or ort.SessionOptions(), **settings))
        finally:
            ort.InferenceSession = on_provider
        return opened[-1].ort

    ort.InferenceSession = on_provider
    try:
        yield opened
    finally:
        ort.InferenceSession = original


def _load(path: Any) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def _is_within(event: dict[str, Any], run: dict[str, Any]) -> bool:
    return bool(run["ts"] <= event["ts"] <= run["ts"] + run["dur"])


def _declared(file: Path) -> set[str]:
    """Return the names of the nodes that are on the CPU on purpose, of a graph as it is run."""
    model = ir.load(file)
    inference = ModelTypes(lambda _: None, model.ir_version, bodies=True)
    return {node.name or "" for node in declared(model.graph, inference.of_graph(model.graph))}


@contextmanager
def _stderr_in(path: Path) -> Iterator[Path]:
    """Write what native code prints to the standard error into a file."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield path
        finally:
            os.dup2(kept, 2)
            os.close(kept)
