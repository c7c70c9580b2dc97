"""Run the files of each target and minimum_onnxruntime in the releases that they are for.

python tools/sweep_oldest.py [NAME …]   convert and run what has no result yet
python tools/sweep_oldest.py --again    … and what failed
python tools/sweep_oldest.py --write    write the section of docs/runtimes.md only

An architecture of tests/models is exported once. For each target and release, a file is written and
run by a process with exactly that release. The outputs of all releases are compared with torch's,
at the tolerances of the tests. Results are kept in build/oldest, so that a run can be continued.

A decoder's folder, "folder of llama", is exported without padding and compared with torch as it is
written. Its files then run four tokens after five cached ones, and are compared with that export.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from coreai_onnx import OnnxProgram, TorchConverter  # noqa: E402
from coreai_onnx.errors import TargetError  # noqa: E402
from coreai_onnx.huggingface.exporting import export_model  # noqa: E402
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME  # noqa: E402
from coreai_onnx.passes import passes_for  # noqa: E402
from coreai_onnx.targets.opsets import Target, chosen_opset  # noqa: E402
from coreai_onnx.targets.releases import newest_opset, release_of, text_of  # noqa: E402
from tests.compat.older_onnxruntime import RELEASES, attempt  # noqa: E402
from tests.models.architecture import expected_outputs  # noqa: E402
from tests.models.generators import GENERATORS  # noqa: E402
from tests.models.zoo import ARCHITECTURES  # noqa: E402
from tests.support.tolerances import as_numpy, assert_close  # noqa: E402

RESULTS = ROOT / "build" / "oldest" / "results.json"
TARGET = ROOT / "docs" / "runtimes.md"
SWEPT: tuple[Target, ...] = ("onnxruntime", "contrib", "portable")
SECTION = re.compile(r"\n## The oldest release of a file\n.*", re.DOTALL)
HEAD = """\
## The oldest release of a file

`make test-oldest` writes each architecture of [models.md](models.md) in float32 for each
`minimum_onnxruntime`, and runs the file in the last patch of exactly that release. The table says
how many of the files opened and agreed with torch, at the tolerances of the tests. Folders of
decoders are exported without padding, and run four tokens after five cached ones.
`coreai_onnx.targets.releases` has the table of operators, attributes, inputs and dtypes that a
release lacks; `coreai_onnx.session` refuses a file for a newer release than the installed one.
"""
ALL = (*(one.name for one in ARCHITECTURES), *(f"folder of {name}" for name in GENERATORS))
CACHED, NEW = 5, 4
Lower = Callable[[int, str], onnx.ModelProto]
"""Returns a model for an opset and a release that must run it."""
Cells = dict[str, str]
"""What is wrong, by ``<name>.<target>.<release>``; empty if nothing is."""


def main() -> int:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--again", action="store_true", help="also run what failed")
    parser.add_argument("--write", action="store_true", help="run nothing, write the table")
    parser.add_argument("names", nargs="*", help="architectures to run; all by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known: Cells = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    chosen = [name for name in ALL if not options.names or name in options.names]
    for one in [] if options.write else chosen:
        done = [key for key in keys(one) if key in known and not (options.again and known[key])]
        if len(done) == len(keys(one)):
            continue
        folder = one.removeprefix("folder of ")
        found = architecture(one) if folder == one else decoder(folder, one)
        known |= found
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(known, indent=1))
        wrong = {key: text for key, text in found.items() if text}
        print(f"{one}: {len(found) - len(wrong)} of {len(found)} agree", flush=True)
        for key, message in wrong.items():
            print(f"  {key}: {message}", flush=True)
    text = TARGET.read_text(encoding="utf-8")
    TARGET.write_text(re.sub(SECTION, "", text).rstrip() + "\n\n" + section(known), "utf-8")
    return 0


def section(known: Cells) -> str:
    """Return the section of docs/runtimes.md: how many files agree, by target and release."""
    groups = (ALL[: len(ARCHITECTURES)], ALL[len(ARCHITECTURES) :])
    rows = []
    for release in RELEASES:
        cells = [release]
        for names, target in itertools.product(groups, SWEPT):
            found = [known[key] for name in names if (key := f"{name}.{target}.{release}") in known]
            cells.append(f"{found.count('')} of {len(found)}")
        rows.append(f"| {' | '.join(cells)} |")
    wrong = [f"* `{key}`: {text}" for key, text in known.items() if text]
    columns = (*SWEPT, *(f"folders, {target}" for target in SWEPT))
    head = [f"| minimum_onnxruntime | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    ran = {key.split(".")[0] for key in known}
    state = "{} of {} architectures and {} of {} folders of decoders have been run.\n".format(
        *(count for names in groups for count in (len(ran & {*names}), len(names)))
    )
    return "\n".join([HEAD, state, *head, *rows, *([""] * bool(wrong)), *wrong, ""])


def keys(name: str) -> list[str]:
    """Return the keys of the cells of an architecture or a folder."""
    return [f"{name}.{target}.{release}" for target in SWEPT for release in RELEASES]


def architecture(name: str) -> Cells:
    """Convert an architecture and run its files."""
    (one,) = (one for one in ARCHITECTURES if one.name == name)
    module, arguments = one.module(), one.arguments(*one.sizes[1])
    expected = [as_numpy(x) for x in expected_outputs(module, arguments)]
    exported = one.export(module)

    def lower(opset: int, minimum: str) -> onnx.ModelProto:
        converter = TorchConverter().add_exported_program(exported)
        made = converter.to_onnx(opset_version=opset, minimum_onnxruntime=minimum)
        return made.to_proto()

    feeds = {key: as_numpy(x) for key, x in arguments.items()}
    return measured(name, lower, feeds, expected, one.exception)


def decoder(architecture: str, name: str) -> Cells:
    """Export the folder of a decoder and run its files."""
    module = GENERATORS[architecture].module()
    with tempfile.TemporaryDirectory() as place:

        def lower(opset: int, minimum: str | None) -> onnx.ModelProto:
            folder = export_model(
                module, Path(place) / str(opset), padding="none", check=minimum is None,
                opset_version=opset, minimum_onnxruntime=minimum, overwrite=True,
            )  # fmt: skip
            return folder.program.to_proto()

        # The newest opset is compared with torch as it is written.
        model = lower(newest_opset(RELEASES[-1]), None)
        feeds = cached_inputs(model)
        session = ort.InferenceSession(model.SerializeToString())
        return measured(name, lower, feeds, session.run(None, feeds), None)


def cached_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return new tokens of one text after cached ones, with random keys, values and states."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in defaults]
    # A decoder without a cache, such as OpenAI-GPT, reads all tokens in each call.
    cached = CACHED if any(info.name.startswith("past_") for info in inputs) else 0
    rng, total = np.random.default_rng(0), cached + NEW
    sizes = {"batch_size": 1, "sequence_length": NEW, "past_sequence_length": cached}
    feeds: dict[str, np.ndarray] = {
        "input_ids": rng.integers(3, 100, (1, NEW)),
        "attention_mask": np.ones((1, total), np.int64),
        "position_ids": np.arange(cached, total)[None],
    }
    for info in inputs:
        if info.name not in feeds:
            dims = info.type.tensor_type.shape.dim
            shape = [dim.dim_value or sizes[dim.dim_param] for dim in dims]
            feeds[info.name] = rng.standard_normal(shape).astype(np.float32)
    return {info.name: feeds[info.name] for info in inputs}


def measured(
    name: str,
    lower: Lower,
    feeds: dict[str, np.ndarray],
    expected: list[np.ndarray],
    exception: str | None,
) -> Cells:
    """Write the files of a model and run them."""
    cells: Cells = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files, refused = written(lower, folder)
        for file in set(files.values()) - refused.keys():
            np.savez(folder / f"{file}.inputs.npz", allow_pickle=False, **feeds)
        for release in RELEASES:
            of = {files[target, release]: target for target in SWEPT}
            run = attempt(release, folder, [file for file in of if file not in refused])
            for file, found in (refused | run).items():
                if file in of:
                    cells[f"{name}.{of[file]}.{release}"] = fault(found, expected, exception)
    return cells


def written(lower: Lower, folder: Path) -> tuple[dict[tuple[Target, str], str], dict[str, str]]:
    """Write the files of a model; return their names, and why some were refused.

    Releases that get the same opset and the same passes share a file, for the oldest of them; where
    that is refused, they have one of their own.
    """
    lowered: dict[int, onnx.ModelProto] = {}
    shared: dict[object, str] = {}
    files: dict[tuple[Target, str], str] = {}
    refused: dict[str, str] = {}
    for target, release in itertools.product(SWEPT, RELEASES):
        minimum = text_of(release_of(release))
        opset = chosen_opset(None, minimum, target)
        key = target, opset, passes_for(target, minimum)
        known = shared.setdefault(key, f"{target}.{minimum}")
        if known in refused:
            known = shared[key] = f"{target}.{minimum}"
        files[target, release] = known
        if known in refused or (folder / f"{known}.onnx").exists():
            continue
        try:
            if opset not in lowered:
                lowered[opset] = lower(opset, minimum)
            program = OnnxProgram({"main": ir.from_proto(lowered[opset])})
            program.optimize(target=target, minimum_onnxruntime=minimum)
        except TargetError as error:
            refused[known] = f"refused: {error}"
            continue
        assert program.model.metadata_props[MINIMUM_ONNXRUNTIME] == minimum
        program.save(folder / f"{known}.onnx")
    return files, refused


def fault(found: list[np.ndarray] | str, expected: list[np.ndarray], exception: str | None) -> str:
    """Return what is wrong with a result, on one line; empty if nothing is."""
    if isinstance(found, str):
        return " ".join(found.split())[:300]
    try:
        assert_close(found, expected, exception=exception)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
