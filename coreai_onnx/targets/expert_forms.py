"""The products of experts without loops, sorts and sequences, for which WebGPU has no kernels.

The body of `gather_mm` sorts the rows by their matrix and multiplies them in a loop. Here, few rows
get a copy of their matrices, and many rows are multiplied by all matrices, of which each then takes
its own: neither reads an index on the CPU.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN, all_nodes

# The values of branches have names that no other form has: inlining renames those of a body only.
_FORM = """<domain: "{domain}", opset_import: ["": 18]>
experts (lhs, rhs, lhs_indices, rhs_indices) => (output) {{
  nought = Constant <value = int64 {{0}}> ()
  unit = Constant <value = int64 {{1}}> ()
  first = Constant <value = int64[1] {{0}}> ()
  one = Constant <value = int64[1] {{1}}> ()
  minus = Constant <value = int64[1] {{-1}}> ()
  count = Shape <start = 0, end = 1> (rhs)
  experts = Squeeze (count, first)
  height = Shape <start = -2, end = -1> (lhs)
  depth = Shape <start = -1> (lhs)
  width = Shape <start = {width}, end = {width_end}> (rhs)
  lead = Shape <start = 0, end = -2> (lhs)
  blocks = ReduceProd <keepdims = 1> (lead)
  block_count = Squeeze (blocks, first)
  rows = Mul (blocks, height)
  block_range = Range (nought, block_count, unit)
  block_numbers = Cast <to = 6> (block_range)
  block_of = Reshape <allowzero = 1> (block_numbers, lead)
  expert_range = Range (nought, experts, unit)
  offsets = Mul (expert_range, block_count)
  expert_offsets = Cast <to = 6> (offsets)
  offset_of = Gather <axis = 0> (expert_offsets, rhs_indices)
  place = Add (offset_of, block_of)
  batch = Shape (place)
  lookups = Size (place)
  few = LessOrEqual (lookups, experts)
  output = If (few) <then_branch = experts_copied () => (experts_chosen) {{
    experts_matrices = Gather <axis = 0> (rhs, rhs_indices)
    experts_last_dims = Shape <start = 1> (rhs)
    experts_stacked_dims = Concat <axis = 0> (minus, experts_last_dims)
    experts_stacked = Reshape (experts_matrices, experts_stacked_dims)
    experts_wide_dims = Concat <axis = 0> (batch, height, depth)
    experts_wide = Expand (lhs, experts_wide_dims)
    experts_flat_dims = Concat <axis = 0> (minus, height, depth)
    experts_flat = Reshape (experts_wide, experts_flat_dims)
    {few}
    experts_chosen_dims = Concat <axis = 0> (batch, height, width)
    experts_chosen = Reshape <allowzero = 1> (experts_product, experts_chosen_dims)
  }}, else_branch = experts_every () => (experts_every_chosen) {{
    experts_every_dims = Concat <axis = 0> (one, rows, depth)
    experts_every_row = Reshape <allowzero = 1> (lhs, experts_every_dims)
    {many}
    experts_blocks_of_all = Mul (count, blocks)
    experts_block_dims = Concat <axis = 0> (experts_blocks_of_all, height, width)
    experts_products = Reshape <allowzero = 1> (experts_every_product, experts_block_dims)
    experts_every_chosen = Gather <axis = 0> (experts_products, place)
  }}>
}}"""
# A transpose of all weights in each run would cost as much as the products: the rows are turned.
_FEW = """experts_turned = Transpose <perm = [0, 2, 1]> (experts_flat)
    experts_turned_product = MatMul (experts_stacked, experts_turned)
    experts_product = Transpose <perm = [0, 2, 1]> (experts_turned_product)"""
_MANY = """experts_every_turned = Transpose <perm = [0, 2, 1]> (experts_every_row)
    experts_every_turned_product = MatMul (rhs, experts_every_turned)
    experts_every_product = Transpose <perm = [0, 2, 1]> (experts_every_turned_product)"""


def replace_experts(model: ir.Model) -> None:
    """Replace the bodies of `gather_mm` whose calls select one matrix ``[N, K]`` per index.

    Args:
        model: A model with functions.
    """
    for identifier, function in list(model.functions.items()):
        if function.domain != STANDARD_DOMAIN or function.name.partition(".")[0] != "gather_mm":
            continue
        calls = [node for node in all_nodes(model) if node.op_identifier() == identifier]
        transposed = {node.attributes.get_int("transpose_rhs", 0) for node in calls}
        if len(transposed) == 1 and all(map(_selects_matrices, calls)):
            model.functions[identifier] = _form(function, *transposed)


def _selects_matrices(node: ir.Node) -> bool:
    inputs = [*node.inputs, None, None][:4]
    rhs = inputs[1]
    return (
        inputs[2] is None
        and inputs[3] is not None
        and node.attributes.get_int("num_batch_axes", 0) == 0
        and rhs is not None
        and rhs.shape is not None
        and len(rhs.shape) == 3
    )


def _form(function: ir.Function, transposed: int) -> ir.Function:
    few = _FEW if transposed else "experts_product = MatMul (experts_flat, experts_stacked)"
    many = _MANY if transposed else "experts_every_product = MatMul (experts_every_row, rhs)"
    width = 1 if transposed else 2
    text = _FORM.format(
        domain=function.domain, width=width, width_end=width + 1, few=few, many=many
    )
    form = ir.serde.deserialize_function(onnx.parser.parse_function(text))
    # Its operators have the same meaning from opset 18 on, and functions have that of the model.
    form.opset_imports[""] = function.opset_imports[""]
    return ir.Function(
        function.domain,
        function.name,
        function.overload,
        graph=form.graph,
        attributes=list(function.attributes.values()),
    )
