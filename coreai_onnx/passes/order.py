"""The passes in the order they run; each round runs all of them, until a round changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx_graphsurgeon as gs

from coreai_onnx.passes.constant_reshapes import constant_reshapes
from coreai_onnx.passes.fold_constants import fold_constants
from coreai_onnx.passes.fold_shapes import fold_shapes
from coreai_onnx.passes.merge_common_subexpressions import merge_common_subexpressions
from coreai_onnx.passes.merge_duplicate_constants import merge_duplicate_constants
from coreai_onnx.passes.remove_dead_code import remove_dead_code
from coreai_onnx.passes.remove_identities import remove_identities
from coreai_onnx.passes.remove_noop_casts import remove_noop_casts
from coreai_onnx.passes.remove_noop_expands import remove_noop_expands
from coreai_onnx.passes.remove_noop_reshapes import remove_noop_reshapes
from coreai_onnx.passes.remove_noop_slices import remove_noop_slices
from coreai_onnx.passes.remove_noop_transposes import remove_noop_transposes
from coreai_onnx.passes.remove_single_inputs import remove_single_inputs
from coreai_onnx.passes.remove_unused_functions import remove_unused_functions
from coreai_onnx.passes.why import Why

Pass = Callable[[gs.Graph, Why], int]
"""A pass: changes a graph in place, says why it did not where it nearly did, counts rewrites."""

ORDER: Final[tuple[Pass, ...]] = (
    remove_dead_code,  # first, so that no later pass works on what goes away
    remove_unused_functions,  # their bodies then need no pass either
    remove_identities,  # so that patterns see producers directly
    fold_shapes,  # before constants: makes the targets of reshapes, expands, slices constant
    fold_constants,  # what only depends on constants, now also on known shapes
    constant_reshapes,  # before no-op reshapes: targets of copied dims become constant
    remove_noop_casts,  # casts stand between equal shapes and hide them from the next ones
    remove_noop_reshapes,  # after targets are constant
    remove_noop_expands,  # likewise
    remove_noop_slices,  # after bounds are constant
    remove_noop_transposes,  # needs nothing but perm; here so that duplicates become visible
    remove_single_inputs,  # likewise
    merge_duplicate_constants,  # before subexpressions: equal inputs become the same input
    merge_common_subexpressions,  # sees the inputs that the passes above made equal
    remove_dead_code,  # last, so that what the others left behind is not saved
)
