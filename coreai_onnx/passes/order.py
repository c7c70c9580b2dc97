"""The pass pipeline in order; rounds of all passes repeat until a round changes nothing."""

from __future__ import annotations

from typing import Final, Protocol

from coreai_onnx.passes.cleanup.fold_constants import (
    fold_constants,
    fold_shapes,
    inline_calls_without_kernels,
    inline_constant_calls,
)
from coreai_onnx.passes.cleanup.merge_consecutive import (
    constant_reshapes,
    merge_casts,
    merge_reshapes,
    merge_transposes,
    transposes_of_units,
)
from coreai_onnx.passes.cleanup.merge_duplicates import (
    merge_common_subexpressions,
    merge_duplicate_constants,
)
from coreai_onnx.passes.cleanup.remove_noops import (
    remove_identities,
    remove_neutral_operands,
    remove_noop_casts,
    remove_noop_expands,
    remove_noop_reshapes,
    remove_noop_slices,
    remove_noop_transposes,
)
from coreai_onnx.passes.cleanup.remove_repetitions import (
    remove_broadcast_expands,
    remove_expands_in_functions,
    remove_repeated_heads,
)
from coreai_onnx.passes.cleanup.remove_unused import (
    remove_dead_code,
    remove_single_inputs,
    remove_unused_functions,
)
from coreai_onnx.passes.cleanup.replace_gathers import (
    gathers_of_one_row,
    gathers_of_parts,
    gathers_of_ranges,
)
from coreai_onnx.passes.cleanup.slices_of_concats import slices_of_concats
from coreai_onnx.passes.contrib.activations import contrib_activations
from coreai_onnx.passes.contrib.attention import contrib_attention
from coreai_onnx.passes.contrib.attention_calls import (
    contrib_cached_attention,
    contrib_open_attention,
)
from coreai_onnx.passes.contrib.decoder_attention import (
    contrib_decoder_attention,
    cuda_decoder_attention,
    webgpu_decoder_attention,
)
from coreai_onnx.passes.contrib.embedding_nbits import contrib_embedding_nbits
from coreai_onnx.passes.contrib.few_bits import contrib_linear_nbits, device_linear_nbits
from coreai_onnx.passes.contrib.linear_attention import contrib_linear_attention
from coreai_onnx.passes.contrib.linear_recurrences import contrib_linear_recurrences
from coreai_onnx.passes.contrib.moe import contrib_moe
from coreai_onnx.passes.contrib.packed_projections import contrib_packed_projections
from coreai_onnx.passes.contrib.qmoe import contrib_qmoe
from coreai_onnx.passes.contrib.quantized_products import contrib_matmul_nbits
from coreai_onnx.passes.contrib.rope import contrib_rope
from coreai_onnx.passes.contrib.skip_norms import contrib_skip_norms
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.fold_batch_norms import fold_batch_norms
from coreai_onnx.passes.fuse.fuse_attention import fuse_attention
from coreai_onnx.passes.fuse.fuse_attention_nbits import fuse_attention_nbits
from coreai_onnx.passes.fuse.fuse_biases import (
    functions_as_activations,
    fuse_biases,
    fuse_float32_biases,
)
from coreai_onnx.passes.fuse.fuse_cache_updates import fuse_cache_updates
from coreai_onnx.passes.fuse.fuse_convolutions import (
    fuse_float32_convolutions,
    fuse_narrow_convolutions,
    fuse_residuals,
)
from coreai_onnx.passes.fuse.fuse_few_bits import fuse_few_bits, narrow_few_bits
from coreai_onnx.passes.fuse.fuse_gated_activations import fuse_gated_activations
from coreai_onnx.passes.fuse.fuse_gemm import add_to_conv_bias, matmul_add_to_gemm
from coreai_onnx.passes.fuse.fuse_low_rank import fuse_low_rank
from coreai_onnx.passes.fuse.fuse_narrow_products import fuse_narrow_products
from coreai_onnx.passes.fuse.fuse_paged_attention import fuse_paged_attention
from coreai_onnx.passes.fuse.fuse_products import (
    fuse_products,
    fuse_tiled_products,
    sums_in_order,
)
from coreai_onnx.passes.fuse.fuse_resizes import fuse_resizes
from coreai_onnx.passes.fuse.fuse_rope import fuse_rope
from coreai_onnx.passes.fuse.integer_products import integer_products
from coreai_onnx.passes.fuse.masks import (
    fuse_causal_masks,
    remove_known_conditions,
    remove_open_masks,
)
from coreai_onnx.passes.fuse.norms import (
    fuse_rms_norm,
    fuse_skip_norms,
    fuse_softmax,
    narrow_norms,
)
from coreai_onnx.passes.fuse.store_unsigned import unsigned_activations, unsigned_weights
from coreai_onnx.passes.layout.admitted_keys import admitted_keys
from coreai_onnx.passes.layout.attention_of_rows import (
    attention_of_rows,
    attention_without_transposes,
)
from coreai_onnx.passes.layout.decompose_dequantization import decompose_dequantization
from coreai_onnx.passes.layout.exact_on_webgpu import (
    centered_norms,
    exponentials_by_polynomials,
    logarithms_by_polynomials,
    powers_by_products,
    sines_by_polynomials,
)
from coreai_onnx.passes.layout.integers_in_int32 import (
    casts_before_views,
    integers_in_int32,
    readers_of_int32,
    zeros_as_booleans,
)
from coreai_onnx.passes.layout.keep_float_layers import keep_float_layers
from coreai_onnx.passes.layout.merge_projections import merge_projections
from coreai_onnx.passes.layout.pretranspose import pretranspose_integers, pretranspose_weights
from coreai_onnx.passes.layout.provider_kernels import (
    alternatives,
    bounds_of_integers,
    casts_of_dtypes,
    extrema_of_two,
    filled_by_expand,
    gathers_of_rows,
    indices_in_int32,
    nans_by_comparison,
    negated_integers,
    positions_of_doubles,
    signs_by_comparison,
    sums_of_two,
    transposes_of_tables,
    triangles_of_positions,
)
from coreai_onnx.passes.layout.running_maxima import running_maxima
from coreai_onnx.passes.layout.split_after_heads import split_after_heads
from coreai_onnx.passes.layout.transposes_of_products import (
    separate_transposes,
    transposes_after_products,
)


class Pass(Protocol):
    """A pass: rewrites a graph in place, reports near misses, returns the number of rewrites.

    Any function with this signature is a pass. It is called for the main graph, for the subgraphs
    of its nodes, and for every function body, until it returns 0 for each of them.
    """

    def __call__(self, graph: gs.Graph, why: Why, /) -> int:
        """Rewrite ``graph``.

        Args:
            graph: A graph of onnx-graphsurgeon; see ``coreai_onnx.passes.engine.surgeon``.
            why: Called with a reason and a node if the pass nearly matched.

        Returns:
            The number of rewrites; 0 means that the graph is unchanged.
        """


ORDER: Final[tuple[Pass, ...]] = (
    remove_dead_code,  # first, so that no later pass works on dead nodes
    remove_unused_functions,  # before passes run on their bodies
    remove_identities,  # so that patterns match producers directly
    pretranspose_integers,  # before the next one, which transposes the integers
    pretranspose_weights,  # before constant folding, which would copy the small ones
    fold_shapes,  # before constant folding: makes the targets of reshapes, expands, slices constant
    fold_constants,  # also folds results of known shapes
    constant_reshapes,  # before no-op reshapes: makes targets of copied dims constant
    remove_neutral_operands,  # after constants are known
    merge_casts,  # may leave a cast to the dtype it came from
    remove_noop_casts,  # casts between equal shapes hide patterns from the next passes
    merge_reshapes,  # may leave a reshape to the shape it came from
    remove_noop_reshapes,  # after targets are constant
    remove_broadcast_expands,  # before no-op expands, which need the shape of one input only
    remove_noop_expands,  # likewise
    remove_noop_slices,  # after slice bounds are constant
    merge_transposes,  # may leave an identity permutation
    remove_noop_transposes,  # before duplicates are merged, which it exposes
    remove_single_inputs,  # likewise
    slices_of_concats,  # after single inputs: every remaining Concat has several inputs
    gathers_of_ranges,  # after neutral operands, which may separate a Range from its use
    gathers_of_one_row,  # after constants are known
    gathers_of_parts,  # after shapes are known
    merge_duplicate_constants,  # before common subexpressions: equal inputs become the same input
    merge_common_subexpressions,  # after the passes above made inputs equal
    fold_batch_norms,  # after statistics are constant
    add_to_conv_bias,  # also applies to convolutions with folded statistics
    matmul_add_to_gemm,  # after reshapes that added a batch of one
    unsigned_activations,  # after casts are merged: compares scales and zero points
    integer_products,  # before transposes are moved; products of rank 2 are Gemm
    transposes_after_products,  # after transposes are merged and products of rank 2 are Gemm
    separate_transposes,  # after products inside of one graph are rewritten
    fuse_cache_updates,  # after neutral operands, which may separate positions from their use
    fuse_rms_norm,  # after common subexpressions: patterns share nodes
    fuse_rope,  # likewise; all layers then share the angles
    fuse_gated_activations,  # matches activations as composites, as ops, or decomposed
    fuse_low_rank,  # before the next one, which may take its sum
    fuse_skip_norms,  # after norms are one node
    fuse_resizes,  # after tables are constant
    remove_known_conditions,  # after gathers of ranges, through which masks read positions
    remove_open_masks,  # after masks are constant
    fuse_causal_masks,  # after known conditions, which hide the comparison of positions
    remove_repeated_heads,  # after shapes are known
    fuse_attention_nbits,  # after repeated heads, which hide the codes of keys and values
    fuse_paged_attention,  # after repeated heads, which hide the blocks of keys and values
    remove_expands_in_functions,  # after the calls have their final arguments
    attention_of_rows,  # likewise; changes bodies that earlier passes compare
    admitted_keys,  # likewise
    transposes_of_units,  # after the fusions, whose patterns contain transposes
    inline_constant_calls,  # after the fusions, which make calls
    decompose_dequantization,  # after products of few bits: what is left, onnxruntime would change
    keep_float_layers,  # after the weights that the pass above leaves in float32
    unsigned_weights,  # after the pass above: the products of integers are those that are left
    remove_dead_code,  # last: removes nodes that the other passes left unused
)
"""For a stock onnxruntime on a CPU and for our kernels: no pass slows down either of them, but for
two rare cases, which `admitted_keys` and `fuse_resizes` name."""

FINISH: Final = ORDER[ORDER.index(decompose_dequantization) :]
"""The end of the order, which follows the passes of a target as well."""
COMMON: Final = ORDER[: -len(FINISH)]
"""What precedes the passes of a target: `FINISH` decomposes the quantized weights they match."""
WITHOUT_INLINING: Final = tuple(
    one for one in COMMON if one not in (inline_constant_calls, fuse_resizes)
)
"""`COMMON` before `DETERMINISTIC` or `TILES`, whose products of constants one would undo, and for
which the other would make more products."""

LAYOUT: Final[tuple[Pass, ...]] = (
    merge_projections,  # after norms are one node, whose output all projections read
    split_after_heads,  # splits the output of the merged projections
)
"""Fewer and larger products, for devices that benefit from them: on a CPU the Split costs more."""

KERNELS: Final[tuple[Pass, ...]] = (
    fuse_attention,  # before the last one, which takes its transposes
    fuse_few_bits,  # quantized weights; independent of the other passes
    narrow_few_bits,  # after products are one node
    narrow_norms,  # after norms are one node; sums before them are fused in the next round
    fuse_narrow_products,  # constants in bfloat16 and float16; likewise
    fuse_narrow_convolutions,  # likewise
    fuse_biases,  # after products, whose biases are then sums
    attention_without_transposes,  # independent of the other passes
)
"""What only our kernels run fast."""

DETERMINISTIC: Final[tuple[Pass, ...]] = (
    inline_calls_without_kernels,  # before all that rewrite what is in their bodies
    fuse_products,  # after narrow products, which have a dtype of their own
    fuse_float32_convolutions,  # likewise
    fuse_residuals,  # after convolutions
    fuse_float32_biases,  # after both, whose biases are then sums
    functions_as_activations,  # after the pass above, which matches activations spelled with them
    fuse_softmax,  # independent of the other passes
    powers_by_products,  # after norms and activations are fused, whose patterns contain squares
    exponentials_by_polynomials,  # likewise; leaves Exp to the functions above
    logarithms_by_polynomials,  # independent of the other passes
    sums_in_order,  # after squares and means are fused into norms
    sines_by_polynomials,  # after rotations are fused, whose patterns contain sines
)
"""In addition to `KERNELS`, for sessions with ``deterministic=True``."""

TILES: Final[tuple[Pass, ...]] = (
    fuse_tiled_products,  # after narrow products, which have a dtype of their own
)
"""In addition to `KERNELS`, for sessions with ``float32_tiles=True``."""

CONTRIB: Final[tuple[Pass, ...]] = (
    contrib_decoder_attention,  # before all others: it takes cache, mask and rotations in one op
    contrib_cached_attention,  # before the next one, which does not handle caches
    contrib_open_attention,  # before the next one, which does not fuse the rotations of these
    contrib_attention,  # before rotations, which it may fuse
    contrib_rope,  # the rotations that attention did not fuse
    contrib_linear_attention,  # independent of the other passes
    contrib_linear_nbits,  # calls of the composite, from a quantizer or an earlier optimization
    contrib_embedding_nbits,  # likewise
    contrib_matmul_nbits,  # 4-bit weights; independent of the passes above
    contrib_moe,  # after gated activations, one of which is between the experts' products
    contrib_qmoe,  # the same for experts with few-bit weights, from a quantizer
    contrib_packed_projections,  # after the attentions and 4-bit weights
    contrib_skip_norms,  # after residual norms are one node
    contrib_activations,  # after gated activations, which contain an activation
)
"""Composites as onnxruntime's contrib ops (``com.microsoft``)."""

DEVICE: Final[tuple[Pass, ...]] = (
    device_linear_nbits,  # few-bit weights, which have no other kernel there
    contrib_matmul_nbits,  # likewise
    casts_of_dtypes,  # independent of the other passes
)
"""For execution providers: forms and contrib ops that they have kernels for."""

WEBGPU: Final[tuple[Pass, ...]] = (
    webgpu_decoder_attention,  # independent of the other passes
    contrib_packed_projections,  # after the attentions and 4-bit weights
    contrib_linear_attention,  # before composites are inlined: its body is a loop on the CPU
    contrib_linear_recurrences,  # independent of the other passes
    running_maxima,  # before the pass below that replaces Max
    sums_of_two,  # independent of the other passes
    negated_integers,  # before extrema, which it leaves
    bounds_of_integers,  # before the next one, which replaces Min and Max
    extrema_of_two,  # independent of the other passes
    nans_by_comparison,  # likewise
    alternatives,  # likewise
    signs_by_comparison,  # likewise
    filled_by_expand,  # likewise
    triangles_of_positions,  # likewise
    transposes_of_tables,  # likewise
    gathers_of_rows,  # likewise
    indices_in_int32,  # after the pass above, which converts indices
    zeros_as_booleans,  # before the next one, which moves its Cast
    casts_before_views,  # before the next one, which needs the range of the values
    integers_in_int32,  # after the passes above, which leave integers and booleans
    readers_of_int32,  # after the pass above, which leaves the Casts that it removes
)
"""In addition to `DEVICE`: WebGPU computes no int64."""

EXACT: Final[tuple[Pass, ...]] = (
    sines_by_polynomials,  # independent of the other passes
    centered_norms,  # likewise
)
"""After `WEBGPU`, and after functions are inlined: patterns of other passes contain sines."""

CUDA: Final[tuple[Pass, ...]] = (
    cuda_decoder_attention,  # independent of the other passes
    contrib_packed_projections,  # after the attentions and 4-bit weights
    positions_of_doubles,  # independent of the other passes
)
"""In addition to `DEVICE`."""
