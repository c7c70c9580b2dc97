"""Test the converter on torch's own operator tests (OpInfo), in processes that may crash.

python tools/sweep_operators.py                     float32, int64 and bool, static shapes
python tools/sweep_operators.py --dynamic           every dim dynamic, run at three shapes
python tools/sweep_operators.py --only '^linalg'    a part; --out FILE keeps all results
python tools/sweep_operators.py --record            write the totals for docs/operators.md

An entry passes if each of its first samples, in every dtype, converts and agrees with torch in
onnxruntime: shapes, dtypes and values. With ``--dynamic``, each call is converted once, with every
dim that torch.export keeps dynamic, and run at its own sizes, at sizes of 1, and at larger ones. A
whole sweep takes some minutes per dtype on one core.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from tools.operators.crew import Found, Job, measure_with_bar  # noqa: E402
from tools.operators.entries import entries, has_a_value  # noqa: E402
from tools.operators.measuring import PASS  # noqa: E402
from tools.operators.results import Sweep, load, record, save, table  # noqa: E402


def main() -> int:
    """Run the sweep, or read a saved one, and print its tables."""
    options = _parser().parse_args()
    sweep = load(options.report) if options.report else _run(options)
    print(table(sweep))
    for entry, dtype, status, detail in sweep.failures():
        print(f"{status:18} {entry} [{dtype}] {detail}")
    if options.record:
        kind = "dynamic" if options.dynamic else "static"
        narrow = "" if "float32" in sweep.dtypes else ", narrow floats"
        record({kind + narrow: sweep.summary()})
    return 0 if set(sweep.totals()) <= {PASS, "skipped", "not exported", "refused"} else 1


def _run(options: argparse.Namespace) -> Sweep:
    names = [n for n in entries() if has_a_value(n) and re.search(options.only, n)]
    sweep = load(options.out) if options.merge or options.again else Sweep()
    pairs = [(name, dtype) for dtype in options.dtypes.split(",") for name in names]
    if options.again:
        pairs = [p for p in pairs if p in sweep.open()]
    jobs = [Job(name, dtype, options.samples, options.dynamic) for name, dtype in pairs]
    about = {"dynamic": options.dynamic, "dtypes": options.dtypes, "samples": options.samples}
    finished = itertools.count(1)

    def tell(job: Job, found: Found) -> None:
        sweep.add(job.entry, job.dtype, found)
        if options.out and next(finished) % 50 == 0:
            save(sweep, options.out, about)

    measure_with_bar(jobs, tell, unit="entry", workers=options.workers)
    if options.out:
        save(sweep, options.out, about)
    return sweep


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", default="float32,int64,bool", help="separated by commas")
    parser.add_argument("--dynamic", action="store_true", help="every dim dynamic, three shapes")
    parser.add_argument("--only", default="", help="entries whose name matches")
    parser.add_argument("--samples", type=int, default=3, help="maximum per entry")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="write every result to this file")
    parser.add_argument("--merge", action="store_true", help="keep the other results of --out")
    parser.add_argument("--again", action="store_true", help="repeat what does not pass in --out")
    parser.add_argument("--report", type=Path, help="print the tables of an --out file")
    parser.add_argument("--record", action="store_true", help="write tools/operators/results.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
