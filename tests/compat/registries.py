"""What each release of onnxruntime registers: its own ops, and the dtypes of CPU kernels.

python -m tests.compat.registries   write tests/targets/first_releases.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.model.standard.op_schemas import schema_of
from coreai_onnx.passes.targets import CONTRIB_OPS
from coreai_onnx.targets.opsets import OPSETS
from coreai_onnx.targets.releases import (
    OLDEST,
    newest_opset,
    release_of,
    text_of,
)
from tests.compat.older_onnxruntime import RELEASES, install

FIRST_RELEASES = Path(__file__).parent.parent / "targets" / "first_releases.json"
WRITTEN = {op for ops in CONTRIB_OPS.values() for op, _ in ops}
"""The ops of onnxruntime that passes write."""
_READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
assert onnxruntime.__version__ == sys.argv[2], onnxruntime.__version__
own = "com.microsoft"
ops = {
    s.name: [*s.attributes, *(f"input {i}" for i in range(min(s.max_input, 64)))]
    for s in state.get_all_operator_schema() if s.domain == own
}
kernels = [
    [k.domain, k.op_name, *k.version_range, sorted({
        n[len("tensor("):-1] for names in k.type_constraints.values() for n in names
        if n.startswith("tensor(")
    })]
    for k in state.get_all_opkernel_def()
    if k.provider == "CPUExecutionProvider" and k.domain in (own, "", "ai.onnx")
]
print(json.dumps([ops, kernels]))
"""


def registry(release: str) -> tuple[dict[str, list[str]], list[list[Any]]]:
    """Return the forms of onnxruntime's own ops, and the CPU kernels, of a release."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(install(release)), release],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    ops, kernels = json.loads(done.stdout)
    return ops, kernels


def first_releases() -> dict[str, str]:
    """Return the release by ``domain/op/form``, where it is not the first with the op's opset.

    The forms are those of `coreai_onnx.targets.releases.SINCE`. float16 is left out: onnxruntime
    computes it in float32 where it has no kernel.
    """
    first: dict[tuple[str, str, str, int], str] = {}
    for release in RELEASES:
        ops, kernels = registry(release)
        with_kernel = {op for domain, op, *_ in kernels if domain == CONTRIB_DOMAIN}
        for op in with_kernel & WRITTEN:
            for form in ["", *ops[op]]:
                first.setdefault((CONTRIB_DOMAIN, op, form, 0), release)
        for domain, op, begin, end, dtypes in kernels:
            own = domain == CONTRIB_DOMAIN
            if own and op not in WRITTEN:
                continue
            opsets = [0] if own else [o for o in OPSETS if begin <= o <= end]
            for opset in opsets:
                # onnxruntime also has kernels for ops that ONNX does not have.
                if own or schema_of(op, opset) is not None:
                    for form in ["", *dtypes]:
                        key = CONTRIB_DOMAIN if own else ""
                        first.setdefault((key, op, form, opset), release)
    later: dict[str, str] = defaultdict(str)
    for (domain, op, form, opset), release in first.items():
        taken = OLDEST if domain else _first_with(opset)
        if release_of(release) > taken and form != "float16":
            key = f"{domain}/{op}/{form}"
            later[key] = max(later[key], text_of(release_of(release)))
    return dict(sorted(later.items()))


def _first_with(opset: int) -> tuple[int, int]:
    return min(release_of(one) for one in RELEASES if newest_opset(one) >= opset)


if __name__ == "__main__":
    FIRST_RELEASES.write_text(json.dumps(first_releases(), indent=1) + "\n", encoding="utf-8")
