"""Layers and models of torch_geometric on one graph, whose nodes and edges vary."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tools.foreign.case import Case, Inputs, Size, imported

FEATURES, OUT = 16, 8
GRAPHS = 3
_RELATIONS = 3

Extra = Callable[[Size], Inputs]


def _nodes(size: Size) -> int:
    return 5 * size.batch


def _graph(size: Size) -> Inputs:
    edges = torch.randint(0, _nodes(size), (2, 2 * size.length))
    return {"x": torch.randn(_nodes(size), FEATURES), "edge_index": edges}


def _weights(size: Size) -> Inputs:
    return {"edge_weight": torch.rand(2 * size.length)}


def _attributes(size: Size) -> Inputs:
    return {"edge_attr": torch.rand(2 * size.length, 4)}


def _types(size: Size) -> Inputs:
    return {"edge_type": torch.randint(0, _RELATIONS, (2 * size.length,))}


def _initial(size: Size) -> Inputs:
    return {"x_0": torch.randn(_nodes(size), FEATURES)}


def _nothing(size: Size) -> Inputs:
    del size
    return {}


def _make(name: str, args: tuple[Any, ...], given: dict[str, Any]) -> torch.nn.Module:
    made: torch.nn.Module = imported(f"torch_geometric.nn.{name}")(*args, **given)
    return made


def _layer(name: str, *args: Any, extra: Extra = _nothing, label: str = "", **given: Any) -> Case:
    def inputs(size: Size) -> Inputs:
        return {**_graph(size), **extra(size)}

    make = functools.partial(_make, name, args, given)
    return Case(f"torch_geometric/{name}{label}", "torch_geometric", make, inputs)


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, OUT)
    )


def _around(name: str, **given: Any) -> Case:
    """Return the case of a layer around a network of its own."""

    def make() -> torch.nn.Module:
        made: torch.nn.Module = imported(f"torch_geometric.nn.{name}")(_mlp(), **given)
        return made

    return Case(f"torch_geometric/{name}", "torch_geometric", make, _graph)


def _pooled(name: str, **given: Any) -> Case:
    """Return the case of a pooling: nodes to graphs."""

    def make() -> torch.nn.Module:
        made: torch.nn.Module = imported(f"torch_geometric.nn.aggr.{name}")(**given)
        return made

    def inputs(size: Size) -> Inputs:
        index = torch.arange(_nodes(size)) * GRAPHS // _nodes(size)
        return {"x": torch.randn(_nodes(size), FEATURES), "index": index, "dim_size": GRAPHS}

    return Case(f"torch_geometric/{name}", "torch_geometric", make, inputs)


GEOMETRIC = (
    _layer("GCNConv", FEATURES, OUT),
    _layer("GCNConv", FEATURES, OUT, extra=_weights, label=" weighted"),
    _layer("GATConv", FEATURES, OUT, heads=2),
    _layer("GATv2Conv", FEATURES, OUT, heads=2),
    _layer("GATv2Conv", FEATURES, OUT, edge_dim=4, extra=_attributes, label=" edges"),
    _layer("SAGEConv", FEATURES, OUT),
    _layer("SAGEConv", FEATURES, OUT, aggr="max", label=" max"),
    _layer("GraphConv", FEATURES, OUT),
    _layer("TransformerConv", FEATURES, OUT, heads=2),
    _layer("ChebConv", FEATURES, OUT, K=3),
    _layer("TAGConv", FEATURES, OUT),
    _layer("SGConv", FEATURES, OUT, K=2),
    _layer("APPNP", K=3, alpha=0.1),
    _layer("ARMAConv", FEATURES, OUT),
    _layer("GCN2Conv", FEATURES, alpha=0.1, extra=_initial),
    _layer("ClusterGCNConv", FEATURES, OUT),
    _layer("LEConv", FEATURES, OUT),
    _layer("FeaStConv", FEATURES, OUT),
    _layer("FAConv", FEATURES, extra=_initial),
    _layer("GENConv", FEATURES, OUT),
    _layer("GatedGraphConv", FEATURES, 2),
    _layer("ResGatedGraphConv", FEATURES, OUT),
    _layer("SuperGATConv", FEATURES, OUT),
    _layer("TransformerConv", FEATURES, OUT, edge_dim=4, extra=_attributes, label=" edges"),
    _layer("RGCNConv", FEATURES, OUT, _RELATIONS, extra=_types),
    _layer("FiLMConv", FEATURES, OUT),
    _layer("CGConv", FEATURES, dim=4, extra=_attributes),
    _layer("MFConv", FEATURES, OUT),
    _layer("LGConv"),
    _layer("MixHopConv", FEATURES, OUT),
    _around("GINConv"),
    _layer("SSGConv", FEATURES, OUT, alpha=0.1),
    _layer("GCN", FEATURES, 16, 2, OUT),
    _layer("GraphSAGE", FEATURES, 16, 2, OUT),
    _layer("GIN", FEATURES, 16, 2, OUT),
    _layer("GAT", FEATURES, 16, 2, OUT),
    _layer(
        "PNA",
        FEATURES,
        16,
        2,
        OUT,
        aggregators=["mean", "max", "std"],
        scalers=["identity", "amplification"],
        deg=torch.tensor([0, 2, 3, 4]),
    ),
    _pooled("MeanAggregation"),
    _pooled("MaxAggregation"),
    _pooled("StdAggregation"),
    _pooled("SoftmaxAggregation", learn=True),
)
"""Every case, in the order of the sweep."""
