"""One call of onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime as ort

from coreai_onnx.errors import SessionError


def execute(
    session: ort.InferenceSession,
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> dict[str, ort.OrtValue]:
    """Run a model and return all its outputs by name.

    Args:
        session: The model.
        feeds: The inputs by name.
        targets: Values that outputs are written to, by the names of the outputs; onnxruntime
            allocates the others.
        options: Options of the run.

    Raises:
        SessionError: If onnxruntime fails.
    """
    names = [node.name for node in session.get_outputs()]
    try:
        if not targets:
            results = session.run_with_ort_values(names, feeds, options)
        else:
            results = _run_bound(session, names, feeds, targets, options)
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        raise SessionError(f"onnxruntime failed while running\n  {error}") from error
    return dict(zip(names, results, strict=True))


def _run_bound(
    session: ort.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> list[ort.OrtValue]:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        if name in targets:
            binding.bind_ortvalue_output(name, targets[name])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding, options)
    return list(binding.get_outputs())
