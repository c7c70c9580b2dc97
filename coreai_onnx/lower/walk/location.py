"""The location of an FX node in the user's model."""

from __future__ import annotations

import functools
import re

from torch import fx

from coreai_onnx.errors import Where
from coreai_onnx.export.versions import is_torch, is_users, relative_path

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>.*)'
)
# Dynamo's names of the root module; exports without strict name it by an empty path.
_ROOT = re.compile(r"^(L\['self'\]|L__self__+|_export_root\b)\.?")
# torch appends @1, @2, ... to the path of a module that forward calls again.
_INDEX = re.compile(r"\['?([^'\]]+)'?\]|@\d+$")


def where_of(node: fx.Node) -> Where:
    """Return the module path, class, source position and line of a node."""
    module, module_class = _innermost_module(node)
    source, code = _last_user_frame(node.meta.get("stack_trace") or "")
    return Where(module, module_class, source, code)


def _innermost_module(node: fx.Node) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", ""
    path, module_class = list(stack.values())[-1]
    name = module_class if isinstance(module_class, str) else module_class.__qualname__
    return _clean_path(str(path)), name.rsplit(".", 1)[-1]


# The nodes of a layer share a few paths and traces, which are long texts to parse.
@functools.lru_cache(maxsize=4096)
def _clean_path(path: str) -> str:
    """Return ``layers.0.mlp`` for ``L['self'].layers['0'].mlp@1`` and the like."""
    return _INDEX.sub(lambda m: f".{m[1]}" if m[1] else "", _ROOT.sub("", path)).strip(".")


def called_function(call: fx.Node, inside: fx.Node) -> str:
    """Return the name of the function that a node calls, or an empty text.

    Args:
        call: The node.
        inside: A node of the graph that the call runs.
    """
    around, frames = (_user_frames(n.meta.get("stack_trace") or "") for n in (call, inside))
    return frames[len(around)]["function"] if len(frames) > len(around) else ""


def _user_frames(trace: str) -> list[re.Match[str]]:
    candidates = [m for m in _FRAME.finditer(trace) if not is_torch(m["file"])]
    # Nodes of a replacement have only frames of this package, which are better than none.
    return [m for m in candidates if is_users(m["file"])] or candidates


@functools.lru_cache(maxsize=4096)
def _last_user_frame(trace: str) -> tuple[str, str]:
    frames = _user_frames(trace)
    if not frames:
        return "", ""
    last = frames[-1]
    return f"{relative_path(last['file'])}:{last['line']}", last["code"].strip()
