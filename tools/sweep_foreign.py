"""Test the converter on models of other libraries, in processes that may crash.

python tools/sweep_foreign.py                  continue where build/foreign.jsonl ends
python tools/sweep_foreign.py --failed         repeat the runs that were wrong, refused or crashed
python tools/sweep_foreign.py --fresh          start again
python tools/sweep_foreign.py --only '^timm'   cases that match an expression; --dtypes float32
python tools/sweep_foreign.py --record         write the totals for docs/foreign_models.md

It runs in the environment of tools/make_foreign_environment: ``make test-foreign`` does both. A
model passes if its program agrees with torch at two sizes, on bodies and on kernels. To take
about 40 minutes on two cores, the lane measures

* float32 and float16 on every model,
* bfloat16 on every second model of each library (``--whole``: on every model),
* torch.onnx.export in float32 on every third model of each library (``--whole``: on every model),
* no half precision of a model that torch.export does not export in float32.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from tools.foreign.cases import BESIDE, CASES, DTYPES, IN_BFLOAT16, LIBRARY  # noqa: E402
from tools.foreign.measuring import SECONDS  # noqa: E402
from tools.foreign.records import RECORD, Job, Records  # noqa: E402
from tools.operators.crew import Found, measure_with_bar  # noqa: E402
from tools.operators.journal import Journal, sweep_parser  # noqa: E402

WORKER = (sys.executable, "-m", "tools.foreign.worker")
PATIENCE = 5 * SECONDS
"""Seconds without a line after which a worker counts as stuck."""
BATCH = 40
"""Jobs after which a worker is replaced, because models leave caches behind."""


def main() -> int:
    """Run the chosen cases and print the tables; 1 if a model is wrong, refused or crashes."""
    options = _parser().parse_args()
    if options.fresh:
        options.out.unlink(missing_ok=True)
    journal = Journal(options.out)
    every = _jobs(options)
    for dtype in DTYPES:  # float32 first: what torch does not export there is not repeated
        records = Records(journal.found, LIBRARY)
        jobs = _open([job for job in every if job.dtype == dtype], records, options)
        _run([job for job in jobs if not _is_known(job, records, journal)], journal, options)
    known = {key: found for key, found in journal.found.items() if key[0] in LIBRARY}
    records = Records(known, LIBRARY)
    print(records.table())
    for (case, dtype), status, detail in records.failures():
        print(f"{status:18} {case} [{dtype}] {detail}")
    if options.record:
        runs = {job.key for job in every} | known.keys()
        summary = {"runs": len(runs), "measured": len(known), **records.summary()}
        RECORD.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 1 if records.failures() else 0


def _jobs(options: argparse.Namespace) -> list[Job]:
    """Return the runs of the lane."""
    beside = frozenset(LIBRARY) if options.whole else BESIDE
    thin = frozenset[str]() if options.whole else frozenset(LIBRARY) - IN_BFLOAT16
    return [
        Job(case.name, dtype, dtype == "float32" and case.name in beside and not options.alone)
        for dtype in DTYPES
        for case in CASES
        if dtype in case.dtypes and not (dtype == "bfloat16" and case.name in thin)
    ]


def _open(every: list[Job], records: Records, options: argparse.Namespace) -> list[Job]:
    """Return the jobs to run."""
    dtypes = options.dtypes.split(",")
    chosen = [j for j in every if j.dtype in dtypes and re.search(options.only, j.case)]
    if options.failed:
        bad = {key for key, *_ in records.failures()}
        return [job for job in chosen if job.key in bad]
    return chosen if options.again else [job for job in chosen if not records.holds(job)]


def _is_known(job: Job, records: Records, journal: Journal) -> bool:
    """Whether the result in float32 already is the one of this job; if so, write it down."""
    found = records.not_repeated(job)
    if found is not None:
        journal.add(job.key, found)
    return found is not None


def _run(jobs: list[Job], journal: Journal, options: argparse.Namespace) -> None:
    def tell(job: Job, found: Found) -> None:
        journal.add(job.key, found)

    workers = options.workers
    measure_with_bar(jobs, tell, workers=workers, command=WORKER, patience=PATIENCE, batch=BATCH)


def _parser() -> argparse.ArgumentParser:
    parser = sweep_parser(__doc__ or "", "foreign", "cases whose name matches")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="separated by commas")
    parser.add_argument("--again", action="store_true", help="also repeat finished runs")
    parser.add_argument("--alone", action="store_true", help="skip torch.onnx.export")
    parser.add_argument("--whole", action="store_true", help="nothing on a part of the models only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
