"""Running maxima without a loop over the steps."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import constant_of, is_standard, maker
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.layout.parallel_scans import ParallelScan

_DOUBLINGS = 20
"""For up to 2^20 steps: a buffer for more does not fit into the memory of a GPU."""
_INT64, _BOOL = np.dtype(np.int64), np.dtype(bool)


@rewrites("Scan")
def running_maxima(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Scan of S ← Max(S + c, x), where c ≤ 0 → maxima over 2, 4, 8, … steps.

    Scan(S, x) {S ← Max(S + c, x); y = f(S)}
    becomes     f(m): m = Concat(S, x), then m = Max(m, Shift(m, n) + n * c) for n = 1, 2, 4, …

    Hillis and Steele 1986, "Data parallel algorithms".
    """
    scan = ParallelScan(edit, node)
    updated = scan.updated("Max")
    if updated is None:
        return False
    step = maker(updated[0].inputs[updated[1]])
    if step is None or not is_standard(step, "Add") or scan.state not in list(step.inputs):
        return False
    if scan.fault:
        return why(scan.fault, node)
    decay = next((one for one in step.inputs if one is not scan.state), scan.state)
    values = constant_of(decay)
    if values is None or not (values <= 0).all():
        return why("the number that each step adds is not a constant of at most 0", node)
    whole = scan.with_state_before(scan.lifted(updated[0].inputs[1 - updated[1]]))
    for doubling in range(_DOUBLINGS):
        whole = _maximum_of(edit, scan, whole, 1 << doubling, decay)
    end = scan.ints(np.iinfo(np.int64).max)
    after = scan.add("Slice", [whole, scan.ints(1), end, scan.ints(0)], scan.shape)
    last = scan.add("Slice", [whole, scan.ints(-1), end, scan.ints(0)], [1, *scan.shape[1:]])
    scan.finish(after, scan.add("Squeeze", [last, scan.ints(0)], scan.shape[1:]))
    return True


def _maximum_of(
    edit: Edit, scan: ParallelScan, x: gs.Tensor, distance: int, decay: gs.Tensor
) -> gs.Tensor:
    """Return Max(x, the rows at a distance before + distance * decay)."""
    # A longer distance than there are steps is the number of steps: no slice is empty, and these
    # rows get less than they should, which a later step does not exceed: it has them already.
    steps = scan.sizes("steps")
    fewer = scan.add("Min", [steps, scan.ints(distance)], [1], _INT64)
    end = scan.add("Neg", [fewer], [1], _INT64)
    axis = scan.ints(0)
    dims = [None, *scan.shape[1:]]
    earlier = scan.add("Slice", [x, axis, end, axis], dims)
    # Pads of all axes: onnxruntime 1.27 moves a Transpose through a Pad as if there were no axes.
    count = 2 * len(scan.shape)
    others = scan.ints(*[0] * (count - 1))
    pads = scan.add("Concat", [fewer, others], [count], _INT64, axis=0)
    lowest = edit.constant("lowest", np.array(np.finfo(np.float32).min))
    shifted = scan.add("Pad", [earlier, pads, lowest], dims)
    values = constant_of(decay)
    assert values is not None
    faded = scan.add("Add", [shifted, edit.constant("decay", values * np.float32(distance))], dims)
    is_larger = scan.add("Less", [x, faded], dims, _BOOL)
    return scan.add("Where", [is_larger, faded, x], dims)
