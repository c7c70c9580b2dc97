"""What the contract of a decoder says about its inputs, as facts of the analysis of positions."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.model.contract import IDS, MASK, POSITIONS
from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, affine_expr, affine_tensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import shape_of


@dataclass(frozen=True)
class Tokens:
    """The inputs of a decoder without padding, and its lengths.

    Attributes:
        mask: The input ``attention_mask``, ones.
        positions: The input ``position_ids``; None if the decoder has none.
        queries: The number of new tokens.
        past: The number of cached tokens.
    """

    mask: gs.Variable
    positions: gs.Variable | None
    queries: AffineExpr
    past: AffineExpr


def tokens_of(graph: gs.Graph) -> Tokens | None:
    """Return the inputs of a decoder whose contract excludes padding; None for other graphs."""
    contract = context_of(graph).contract
    if contract is None or not contract.is_unpadded:
        return None
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    if IDS not in inputs or MASK not in inputs:
        return None
    shapes = [shape_of(inputs[name]) for name in (IDS, MASK)]
    sizes = [affine_expr(shape[1]) for shape in shapes if shape is not None and len(shape) == 2]
    queries, total = sizes if len(sizes) == 2 else (None, None)
    if queries is None or total is None:
        return None
    return Tokens(inputs[MASK], inputs.get(POSITIONS), queries, total - queries)


def positions_of(graph: gs.Graph) -> AffineAnalysis:
    """Return an analysis that knows what the contract of a graph says about its inputs."""
    tokens = tokens_of(graph)
    if tokens is None:
        return AffineAnalysis()
    dims = tuple(affine_expr(dim) for dim in tokens.mask.shape)
    facts: dict[gs.Tensor, AffineTensor] = {tokens.mask: AffineTensor.filled(1, dims)}
    if tokens.positions is not None:
        places = affine_tensor(tokens.past, (0, 1), (dims[0], tokens.queries))
        facts[tokens.positions] = places
    return AffineAnalysis(facts)
