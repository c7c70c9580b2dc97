"""One call of onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime as ort

from coreai_onnx.errors import SessionError


def execute(
    session: ort.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> dict[str, ort.OrtValue]:
    """Run a model and return all its outputs by name.

    Args:
        session: The model.
        names: The names of its outputs.
        feeds: The inputs by name.
        targets: Values that outputs are written to, by the names of the outputs; onnxruntime
            allocates the others.
        options: Options of the run.

    Raises:
        SessionError: If onnxruntime fails.
    """
    try:
        if not targets:
            results = session.run_with_ort_values(names, feeds, options)
            return dict(zip(names, results, strict=True))
        return _run_bound(session, names, feeds, targets, options)
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        raise SessionError(f"onnxruntime failed while running\n  {error}") from error


def _run_bound(
    session: ort.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> dict[str, ort.OrtValue]:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    allocated = [name for name in names if name not in targets]
    for name in allocated:
        binding.bind_output(name)
    for name, value in targets.items():
        binding.bind_ortvalue_output(name, value)
    session.run_with_iobinding(binding, options)
    # get_outputs() would make a second value for each target, which costs 2 µs each.
    results = binding.get_outputs_as_ortvaluevector()
    return {name: ort.OrtValue(results[i]) for i, name in enumerate(allocated)} | dict(targets)
