"""Runs regions of a graph, and writes one as a reproduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.regions import COMPUTED, CutGraph, Region
from coreai_onnx.errors import (
    KernelsNotBuiltError,
    ProviderError,
    SaveError,
    SessionError,
    failures_as,
    reason_of,
)
from coreai_onnx.model.files.saving import save_models, write_text
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.targets.providers import CPU, Choice, chosen_providers


def run_all(
    graph: CutGraph, feeds: Mapping[str, Array], regions: Sequence[Region], **settings: Any
) -> dict[str, Array | str]:
    """Return the result of each region, or why it cannot be run.

    Args:
        graph: The cut graph.
        feeds: torch's results by value name, which are fed at the cuts.
        regions: The regions that are run alone if the graph cannot be run.
        **settings: The settings of the session.

    Raises:
        KernelsNotBuiltError: If kernels are run and there is no kernel library.
        ProviderError: If the provider is not available.
        SessionError: If the graph cannot be run, and there are no regions.
    """
    try:
        return dict(_run(graph.model, feeds, **settings))
    except (KernelsNotBuiltError, ProviderError):
        raise
    except SessionError:  # one region is broken: find out which
        if not regions:
            raise
        results: dict[str, Array | str] = {}
        for region in regions:
            try:
                results |= _run(graph.alone([region]), feeds, **settings)
            except SessionError as error:
                results[region.value] = f"onnxruntime cannot run it: {reason_of(error)}"
        return results


def _run(model: ir.Model, feeds: Mapping[str, Array], **settings: Any) -> dict[str, Array]:
    session = Session(model, **settings)
    outputs = session.run(**{info.name: feeds[info.name] for info in session.inputs})
    names = (info.name for info in session.outputs)
    return {name.removesuffix(COMPUTED): outputs[name] for name in names}


# The layout of the data of ONNX's backend tests.
DATA = "test_data_set_0"
SCRIPT = '''"""Runs model.onnx on the inputs in test_data_set_0; prints how its outputs differ."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

FOLDER = Path(__file__).parent


def read(kind, index):
    path = FOLDER / "test_data_set_0" / f"{kind}_{index}.pb"
    return onnx.numpy_helper.to_array(onnx.load_tensor(str(path)))


session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=PROVIDERS)
feeds = {value.name: read("input", i) for i, value in enumerate(session.get_inputs())}
for index, (value, actual) in enumerate(zip(session.get_outputs(), session.run(None, feeds))):
    expected = read("output", index)
    error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    print(f"{value.name}: largest difference {error.max(initial=0.0):.3e}")
'''


def write_reproduction(
    folder: Path, model: ir.Model, feeds: Mapping[str, Array], provider: Choice | None = None
) -> Path:
    """Write ``model.onnx``, ``test_data_set_0/input_i.pb`` and ``output_i.pb``, and ``run.py``.

    Args:
        folder: The folder; it is created.
        model: The model; the names of its outputs end in ``#computed``.
        feeds: torch's results by value name: the inputs, and the expected outputs.
        provider: The execution provider that ``run.py`` runs it on.

    Returns:
        The folder.

    Raises:
        SaveError: If it cannot be written.
    """
    with failures_as(SaveError, f"cannot write {folder}"):
        (folder / DATA).mkdir(parents=True, exist_ok=True)
        save_models({folder / "model.onnx": model}, folder / "model.onnx.data")
        for kind, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
            for index, value in enumerate(values):
                name = value.name or ""
                tensor = _tensor(feeds[name.removesuffix(COMPUTED)], name)
                onnx.save_tensor(tensor, folder / DATA / f"{kind}_{index}.pb")
        providers = [*chosen_providers(provider).items(), CPU]
        write_text(folder / "run.py", SCRIPT.replace("PROVIDERS", repr(providers)))
    return folder


def _tensor(array: Array, name: str) -> onnx.TensorProto:
    proto: onnx.TensorProto = ir.to_proto(ir.tensor(np.ascontiguousarray(array), name=name))
    return proto
