"""Arguments of ``call(...)``, in the structure that the exported function takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import CallError


@dataclass(frozen=True)
class Fixed:
    """An argument whose value the export made a part of the model."""

    value: Any


class Fields:
    """The fields of an object: ``Fields(ids="batch_ids", mask="batch_mask")``."""

    def __init__(self, **items: Any) -> None:
        """Name the fields."""
        self.items = items


def flattened(
    takes: Mapping[str, Any],
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a call by the names of the model's inputs.

    Args:
        takes: Parameter to what it holds: the name of an input, a `Fixed` value, or a list, a dict
            or `Fields` of them.
        arguments: Arguments by position.
        named: Arguments by name.
        optional: Names of inputs that may be given by name and may be omitted.

    Raises:
        CallError: If the arguments are too many or too few, or have another structure.
    """
    names = ", ".join(takes) or "nothing"
    if len(arguments) > len(takes):
        raise CallError(
            f"{len(arguments)} arguments are given, but the model takes {len(takes)}: {names}"
        )
    by_name = dict(zip(takes, arguments, strict=False))
    for name, value in named.items():
        if name in by_name:
            raise CallError(f"{name} is given twice, by position and by name")
        if name not in takes and name not in optional:
            raise CallError(f"the model takes no argument {name!r}; it takes {names}")
        by_name[name] = value
    others = {name: value for name, value in by_name.items() if name not in takes}
    missing = [
        name for name in takes if name not in by_name and not _is_fixed(takes[name])
    ]
    if missing:
        raise CallError(
            f"missing arguments: {', '.join(missing)}; the model takes {names}"
        )
    for name in takes:
        if name in by_name:
            _flatten(name, takes[name], by_name[name], others)
    return others


def _is_fixed(template: Any) -> bool:
    if isinstance(template, str):
        return False
    items = template.items if isinstance(template, Fields) else template
    if isinstance(items, Mapping):
        return all(map(_is_fixed, items.values()))
    return isinstance(items, Fixed) or all(map(_is_fixed, items))


def _flatten(place: str, template: Any, value: Any, found: dict[str, Any]) -> None:
    """Add the inputs that a part of the arguments holds."""
    if isinstance(template, str):
        found[template] = value
    elif isinstance(template, Fixed):
        _check_fixed(place, template.value, value)
    elif isinstance(template, Fields):
        for name, item in template.items.items():
            if not hasattr(value, name):
                raise _other(
                    place, value, f"an object with {', '.join(template.items)}"
                )
            _flatten(f"{place}.{name}", item, getattr(value, name), found)
    elif isinstance(template, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(template):
            raise _other(place, value, f"a dict of {', '.join(map(repr, template))}")
        for key, item in template.items():
            _flatten(f"{place}[{key!r}]", item, value[key], found)
    else:
        # torch.export takes a deque apart as it does a list.
        if not isinstance(value, list | tuple | deque) or len(value) != len(template):
            raise _other(place, value, f"a list or tuple of {len(template)}")
        for number, item in enumerate(template):
            _flatten(f"{place}[{number}]", item, value[number], found)


def _check_fixed(place: str, expected: Any, value: Any) -> None:
    # True equals 1 in Python, but the export may have branched on it.
    is_same = isinstance(value, bool) == isinstance(expected, bool)
    if not is_same or not isinstance(value, type(expected) | int) or value != expected:
        raise CallError(
            f"{place} is {value!r:.80}, but the model was exported for {expected!r}; "
            "export it again for another value"
        )


def _other(place: str, value: Any, wanted: str) -> CallError:
    description = type(value).__name__
    if isinstance(value, Mapping):
        description = f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    elif isinstance(value, list | tuple | deque):
        description = f"a {description} of {len(value)}"
    return CallError(f"{place} is {description}, but the model takes {wanted}")
