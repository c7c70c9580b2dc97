"""Measure the converter on models of other libraries, in processes that may crash.

python tools/sweep_foreign.py                  go on where build/foreign.jsonl ends
python tools/sweep_foreign.py --failed         again what is wrong, refused or crashed there
python tools/sweep_foreign.py --fresh          everything from the start
python tools/sweep_foreign.py --only '^timm'   cases that an expression finds; --dtypes float32
python tools/sweep_foreign.py --record         write the totals for docs/foreign_models.md

It runs in the environment of tools/make_foreign_environment: ``make test-foreign`` does both. A
model passes if its program gives, at two sizes, on bodies and on kernels, what torch gives.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from tests.coverage.crew import Found, measure_all  # noqa: E402
from tests.foreign.cases import CASES, DTYPES, LIBRARY  # noqa: E402
from tests.foreign.measuring import SECONDS  # noqa: E402
from tests.foreign.records import RECORD, Job, Records, table  # noqa: E402

WORKER = (sys.executable, "-m", "tests.foreign.worker")
PATIENCE = 2 * SECONDS
"""Seconds without a line after which a worker counts as stuck."""
BATCH = 40
"""Jobs after which a worker makes room for a fresh one: models leave caches behind."""


def main() -> int:
    """Run what is asked for and print the tables; 1 if a model is wrong, refused or crashes."""
    options = _parser().parse_args()
    if options.fresh:
        options.out.unlink(missing_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    every = [
        Job(c.name, d, d == "float32" and not options.alone)
        for d in DTYPES
        for c in CASES
        if d in c.dtypes
    ]
    chosen = [
        j for j in every if j.dtype in options.dtypes.split(",") and re.search(options.only, j.case)
    ]
    records = Records.read(options.out)
    _run(_open(chosen, records, options), records, options)
    found = records.of((j.case, j.dtype) for j in every)
    print(table(found, LIBRARY))
    for (case, dtype), status, detail in found.failures():
        print(f"{status:18} {case} [{dtype}] {detail}")
    if options.record:
        text = json.dumps(found.summary(LIBRARY), indent=1)
        RECORD.write_text(text + "\n", encoding="utf-8")
    return 1 if found.failures() else 0


def _open(chosen: list[Job], records: Records, options: argparse.Namespace) -> list[Job]:
    """Return the jobs to run."""
    if options.failed:
        bad = {key for key, *_ in records.failures()}
        return [j for j in chosen if (j.case, j.dtype) in bad]
    if options.again:
        return chosen
    return [j for j in chosen if not records.holds(j)]


def _run(jobs: list[Job], records: Records, options: argparse.Namespace) -> None:
    with tqdm(total=len(jobs), unit="model", smoothing=0.05) as bar:

        def tell(job: Job, found: Found) -> None:
            records.add(options.out, job, found)
            bar.set_postfix_str(f"{job.dtype} {job.case}"[:40])
            bar.update()

        measure_all(
            jobs, tell, workers=options.workers, command=WORKER, patience=PATIENCE, batch=BATCH
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="separated by commas")
    parser.add_argument("--only", default="", help="cases whose name this expression finds")
    parser.add_argument("--failed", action="store_true", help="only what does not pass so far")
    parser.add_argument("--again", action="store_true", help="what is chosen, done or not")
    parser.add_argument("--alone", action="store_true", help="without torch.onnx.export beside it")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "foreign.jsonl")
    parser.add_argument("--record", action="store_true", help="write tests/foreign/results.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
