"""Time and memory of saving and running a file of more than 4 GiB.

    python -m tools.bench.large_files --folder /a/disk/with/11/GiB

Nothing is asserted beyond the results being right. The weights are one tensor of 2.3 GiB and others
of 512 MiB, all of them pages of zeros that the system does not hold, so that what is measured is
what saving needs. `tests/model/files/test_saving.py` checks the offsets and contents.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.files.saving import save_models
from tests.support.small_models import parse

WIDTH = 1024
ROWS = (600 << 10, *[128 << 10] * 5)


def model() -> ir.Model:
    """Rows of every table, picked by one index; the last row of table n says n."""
    names = [f"w{n}" for n in range(len(ROWS))]
    nodes = "".join(f"y{n} = Gather({name}, i)  " for n, name in enumerate(names))
    outputs = ", ".join(f"float[n, {WIDTH}] y{n}" for n in range(len(ROWS)))
    built = parse(
        f'<ir_version: 10, opset_import: ["": 21]> g (int64[n] i) => ({outputs}) {{ {nodes} }}'
    )
    values = {value.name: value for node in built.graph for value in node.inputs}
    for number, (name, rows) in enumerate(zip(names, ROWS, strict=True)):
        table = np.zeros((rows, WIDTH), np.float32)
        table[-1] = number
        values[name].const_value = ir.Tensor(table, name=name)
        built.graph.initializers.add(values[name])
    return built


def peak() -> int:
    """MiB of the largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measure(folder: Path) -> None:
    """Save, load and run once, and print what it took."""
    path, built, before = folder / "large.onnx", model(), peak()
    start = time.perf_counter()
    files = save_models({path: built}, folder / "large.onnx.data")
    seconds, size = time.perf_counter() - start, sum(file.stat().st_size for file in files)
    print(f"saved {size / (1 << 30):.2f} GiB in {seconds:.1f} s, {peak() - before} MiB at the peak")
    before, start = peak(), time.perf_counter()
    options = ort.SessionOptions()
    session = ort.InferenceSession(str(path), options)
    results = session.run(None, {"i": np.array([-1])})
    assert [float(result[0, 5]) for result in results] == list(range(len(ROWS)))
    seconds = time.perf_counter() - start
    print(f"loaded and ran in {seconds:.1f} s, {peak() - before} MiB at the peak")


def main() -> None:
    """Measure in a folder that vanishes again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where; default: the folder for such files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name))


if __name__ == "__main__":
    main()
