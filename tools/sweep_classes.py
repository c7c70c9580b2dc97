"""Test the converter on every model class of the installed transformers.

python tools/sweep_classes.py                  continue where build/classes.jsonl ends
python tools/sweep_classes.py --failed         repeat the classes without a pass
python tools/sweep_classes.py --fresh          start again
python tools/sweep_classes.py --only '^Qwen'   classes that match; --shard 0/4: every fourth
python tools/sweep_classes.py --steps 1        conversion only: no generation, no other exporter
python tools/sweep_classes.py --record         write the results for docs/transformers_classes.md

``make test-transformers`` does it. A class is built from a small configuration, exported as
transformers' exporters do, converted, and run at two sizes on bodies and on kernels. Then
``generate`` runs on the exported parts, and every third class is exported by transformers' own
ONNX exporter. Each class takes up to a minute; classes run in processes that may crash.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from tools.classes.listing import Job, every_class  # noqa: E402
from tools.classes.records import RECORD, failures, holds, is_measured, summary  # noqa: E402
from tools.operators.crew import Found, measure_with_bar  # noqa: E402
from tools.operators.journal import Journal, sweep_parser  # noqa: E402

PATIENCE = 900
"""Seconds without a line after which a worker counts as stuck."""
BATCH = 40
"""Jobs after which a worker is replaced, because models leave caches behind."""


def main() -> int:
    """Run the chosen classes and print what failed; 1 if a class is wrong, refused or crashes."""
    options = _parser().parse_args()
    if options.fresh:
        options.out.unlink(missing_ok=True)
    journal = Journal(options.out)
    jobs = _chosen(journal, options)

    def tell(job: Job, found: Found) -> None:
        journal.add(job.key, found)

    command = (sys.executable, "-m", "tools.classes.worker", str(options.steps))
    workers = options.workers
    measure_with_bar(
        jobs, tell, unit="class", workers=workers, command=command, patience=PATIENCE, batch=BATCH
    )
    names = {job.key for job in every_class()}
    known = {key: found for key, found in journal.found.items() if key in names}
    for name, status, detail in failures(known):
        print(f"{status:18} {name}: {detail}")
    if options.record:
        RECORD.write_text(json.dumps(summary(known), indent=0) + "\n", encoding="utf-8")
    return 1 if failures(known) else 0


def _chosen(journal: Journal, options: argparse.Namespace) -> list[Job]:
    """Return the classes to run."""
    shard, count = map(int, options.shard.split("/"))
    jobs = [job for job in every_class()[shard::count] if re.search(options.only, job.name)]
    if options.failed:
        bad = {name for name, *_ in failures(journal.found)}
        bad |= {name for (name,), found in journal.found.items() if not is_measured(found)}
        return [job for job in jobs if job.name in bad]
    if options.again:
        return jobs
    return [job for job in jobs if not holds(journal.found.get(job.key, []), job, options.steps)]


def _parser() -> argparse.ArgumentParser:
    parser = sweep_parser(__doc__ or "", "classes", "classes whose name matches")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th class from the I-th on")
    parser.add_argument("--steps", type=int, default=3, help="1: conversion; 2: and generation")
    parser.add_argument("--again", action="store_true", help="also repeat finished classes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
