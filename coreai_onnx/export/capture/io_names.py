"""Names of outputs, taken from the user's Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, OutputSpec

from coreai_onnx.export.compat.torch_names import FakeTensor, pytree


def output_names(program: ExportedProgram, count: int) -> list[str]:
    """Return a name for each live user output.

    Keys of dictionaries and fields of dataclasses are kept (``last_hidden_state``); positions
    become ``output`` when there is one output, ``output_0``, ``output_1`` when there are more.

    Args:
        program: The exported program.
        count: Number of user outputs that are live (neither None nor a string).
    """
    specs = [s for s in program.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    tree = program.call_spec.out_spec
    paths: list[str] = []
    if tree is not None and tree.num_leaves == len(specs):
        paths = _paths(program, specs, tree)
    else:
        paths = [""] * len(specs)
    live = [
        path
        for path, spec in zip(paths, specs, strict=True)
        if not (isinstance(spec.arg, ConstantArgument) and not _is_number(spec.arg.value))
    ]
    if len(live) != count:
        live = [""] * count
    if count == 1:
        return [live[0] if _speaks(live[0]) else "output"]
    return [p if _speaks(p) else f"output_{p or i}" for i, p in enumerate(live)]


def _paths(
    program: ExportedProgram, specs: Sequence[OutputSpec], tree: pytree.TreeSpec
) -> list[str]:
    """Return the path of each user output in the object that forward returned."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    leaves = [getattr(spec.arg, "value", values.get(spec.arg.name)) for spec in specs]
    modes = (x.fake_mode for x in leaves if isinstance(x, FakeTensor))
    try:
        # The constructor of an output class may compute with its tensors, which are fake.
        with next(modes, nullcontext()):
            entries = pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, tree))[0]
    except Exception:  # noqa: BLE001 - containers of other libraries may raise anything
        return [""] * len(specs)
    return [_path_name(path) for path, _ in entries]


def _is_number(x: object) -> bool:
    return isinstance(x, int | float | bool)


def _speaks(path: str) -> bool:
    """Whether a path begins with a key instead of a position."""
    return bool(path) and not path[0].isdigit()


def _path_name(path: tuple[object, ...]) -> str:
    parts = []
    for entry in path:
        # Of pytree's MappingKey, GetAttrKey and SequenceKey.
        for attribute in ("key", "name", "idx"):
            if hasattr(entry, attribute):
                parts.append(str(getattr(entry, attribute)))
                break
    return ".".join(parts)
