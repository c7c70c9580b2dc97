"""Run the files of each target and minimum_onnxruntime in the releases that they are for.

python tools/sweep_oldest.py [NAME …]   convert and run what has no result yet
python tools/sweep_oldest.py --again    … and what failed
python tools/sweep_oldest.py --write    write the section of docs/runtimes.md only

An architecture of tests/models is exported once. For each target and release, a file is written and
run by a process with exactly that release. The outputs of all releases are compared with torch's,
at the tolerances of the tests. Results are kept in build/oldest, so that a run can be continued.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from coreai_onnx import OnnxProgram, TorchConverter  # noqa: E402
from coreai_onnx.errors import TargetError  # noqa: E402
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME  # noqa: E402
from coreai_onnx.passes import passes_for  # noqa: E402
from coreai_onnx.targets.opsets import Target, chosen_opset  # noqa: E402
from coreai_onnx.targets.releases import release_of, text_of  # noqa: E402
from tests.compat.older_onnxruntime import RELEASES, attempt  # noqa: E402
from tests.models.architecture import Architecture, expected_outputs  # noqa: E402
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
how many of the files opened and agreed with torch, at the tolerances of the tests.
`coreai_onnx.targets.releases` has the table of operators, attributes, inputs and dtypes that a
release lacks; `coreai_onnx.session` refuses a file for a newer release than the installed one.
"""
Cells = dict[str, str]
"""What is wrong, by ``<architecture>.<target>.<release>``; empty if nothing is."""


def main() -> int:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--again", action="store_true", help="also run what failed")
    parser.add_argument("--write", action="store_true", help="run nothing, write the table")
    parser.add_argument("names", nargs="*", help="architectures to run; all by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known: Cells = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    chosen = [a for a in ARCHITECTURES if not options.names or a.name in options.names]
    for one in [] if options.write else chosen:
        done = [key for key in keys(one) if key in known and not (options.again and known[key])]
        if len(done) == len(keys(one)):
            continue
        found = measured(one)
        known |= found
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(known, indent=1))
        wrong = {key: text for key, text in found.items() if text}
        print(f"{one.name}: {len(found) - len(wrong)} of {len(found)} agree", flush=True)
        for key, message in wrong.items():
            print(f"  {key}: {message}", flush=True)
    text = TARGET.read_text(encoding="utf-8")
    TARGET.write_text(re.sub(SECTION, "", text).rstrip() + "\n\n" + section(known), "utf-8")
    return 0


def section(known: Cells) -> str:
    """Return the section of docs/runtimes.md: how many files agree, by target and release."""
    rows = []
    for release in RELEASES:
        cells = [release]
        for target in SWEPT:
            found = [known[k] for a in ARCHITECTURES if (k := key_of(a, target, release)) in known]
            cells.append(f"{found.count('')} of {len(found)}")
        rows.append(f"| {' | '.join(cells)} |")
    wrong = [f"* `{key}`: {text}" for key, text in known.items() if text]
    head = [f"| minimum_onnxruntime | {' | '.join(SWEPT)} |", "|---" * (len(SWEPT) + 1) + "|"]
    ran = len({key.split(".")[0] for key in known})
    state = f"{ran} of {len(ARCHITECTURES)} architectures have been run.\n"
    return "\n".join([HEAD, state, *head, *rows, *([""] * bool(wrong)), *wrong, ""])


def key_of(architecture: Architecture, target: Target, release: str) -> str:
    """Return the key of a cell."""
    return f"{architecture.name}.{target}.{release}"


def keys(architecture: Architecture) -> list[str]:
    """Return the keys of the cells of an architecture."""
    return [key_of(architecture, target, release) for target in SWEPT for release in RELEASES]


def measured(architecture: Architecture) -> Cells:
    """Convert an architecture and run its files."""
    cells: Cells = {}
    module = architecture.module()
    arguments = architecture.arguments(*architecture.sizes[1])
    expected = [as_numpy(x) for x in expected_outputs(module, arguments)]
    feeds = {name: as_numpy(x) for name, x in arguments.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files, refused = written(architecture, module, folder)
        for name in set(files.values()) - refused.keys():
            np.savez(folder / f"{name}.inputs.npz", allow_pickle=False, **feeds)
        for release in RELEASES:
            of = {files[target, release]: target for target in SWEPT}
            run = attempt(release, folder, [name for name in of if name not in refused])
            for name, found in (refused | run).items():
                if name not in of:
                    continue
                key = key_of(architecture, of[name], release)
                cells[key] = fault(found, expected, architecture.exception)
    return cells


def written(
    architecture: Architecture, module: torch.nn.Module, folder: Path
) -> tuple[dict[tuple[Target, str], str], dict[str, str]]:
    """Write the files of an architecture; return their names, and why some were refused.

    Releases that get the same opset and the same passes share a file, for the oldest of them; where
    that is refused, they have one of their own.
    """
    exported = architecture.export(module)
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
                converter = TorchConverter().add_exported_program(exported)
                made = converter.to_onnx(opset_version=opset, minimum_onnxruntime=minimum)
                lowered[opset] = made.to_proto()
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
