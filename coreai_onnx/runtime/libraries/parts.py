"""Registration of the libraries of backends, which run delegated parts instead of their bodies."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError, reason_of
from coreai_onnx.model.delegated_parts import delegated_parts
from coreai_onnx.runtime.libraries.compiled_parts import another_version, provider_of

PARTS = "coreai.parts."
"""Prefix of a session's configuration entry: the parts that the library of a domain may run, as
names separated by commas. A library that finds no entry registers names from ``part_0`` on."""
_MOST_CHARACTERS = 8192
"""Maximum length of a configuration entry in onnxruntime."""

Parts = dict[str, list[str]]
"""The names of parts by domain."""


def usable_parts(model: ir.Model, providers: Sequence[str] = ()) -> Parts:
    """Return the parts of a model that backends may run; warn of the others, which are stale.

    Args:
        model: The model.
        providers: The execution providers that are used; parts of others are left out.
    """
    found: Parts = {}
    stale = {}
    for part in delegated_parts(model):
        provider = provider_of(part)
        if provider and provider not in providers:
            continue
        names = found.setdefault(part.function.domain, [])
        if fault := part.stale or another_version(part):
            stale[part.name] = fault
        else:
            names.append(part.function.name)
    if stale:
        _warn("\n".join(f"  {name}: {fault}" for name, fault in stale.items()))
    return {domain: _fitting(domain, names) for domain, names in found.items()}


def _fitting(domain: str, names: list[str]) -> list[str]:
    """Return the names that fit into an entry, and warn of the others."""
    ends = itertools.accumulate(len(name) + 1 for name in names)
    # `ends` counts a comma after each name; the last name has none.
    kept = sum(end - 1 <= _MOST_CHARACTERS for end in ends)
    if kept < len(names):
        warnings.warn(
            f"{len(names) - kept} of the {len(names)} parts of {domain} run on their bodies, from "
            f"{names[kept]} on: an entry of onnxruntime's configuration has {_MOST_CHARACTERS} "
            "characters\n  delegate larger parts, or more of them to other backends",
            RuntimeWarning,
            stacklevel=2,
        )
    return names[:kept]


def add_entries(options: ort.SessionOptions, parts: Mapping[str, Sequence[str]]) -> None:
    """Add the entry of each library, with its parts."""
    for domain, names in parts.items():
        options.add_session_config_entry(PARTS + domain, ",".join(names))


def opened_with(
    parts: Parts, open_model: Callable[[Parts], ort.InferenceSession]
) -> ort.InferenceSession:
    """Open a model with the parts that the libraries accept, and warn of those that they refuse.

    Args:
        parts: The parts that the libraries may run.
        open_model: Opens the model with some of them.

    Raises:
        SessionError: If the model cannot be opened without parts either.
    """
    # onnxruntime stops at the first part that a library refuses, so that each round removes what
    # its message names. A round removes one part at least, so that the loop ends.
    refused: list[str] = []
    while True:
        try:
            opened = open_model(parts)
        except SessionError as error:
            if not any(parts.values()):
                raise
            refused.append(f"  {reason_of(error)}")
            parts = _without_failed(parts, refused[-1])
        else:
            if refused:
                _warn("\n".join(refused))
            return opened


def _without_failed(parts: Parts, message: str) -> Parts:
    """Return the parts that an error of onnxruntime does not name; none if it names no part."""
    kept = {d: [n for n in names if not _is_in(message, d, n)] for d, names in parts.items()}
    # Without progress `opened_with` would try the same parts for ever.
    return {domain: [] for domain in parts} if kept == parts else kept


def _is_in(message: str, domain: str, name: str) -> bool:
    # part_1 is not part_10 nor part_1.2, a copy
    return re.search(re.escape(f"{domain}::{name}") + r"(?!\d|\.\d)", message) is not None


def _warn(reasons: str) -> None:
    warnings.warn(
        f"delegated parts run on their bodies\n{reasons}\n"
        "  delegate the program again with the backend that is installed",
        RuntimeWarning,
        stacklevel=2,
    )
