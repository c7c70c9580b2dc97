"""Conversion between ``onnx_ir`` and onnx-graphsurgeon.

``open_model`` builds a ``gs.Graph`` directly from the ``onnx_ir`` objects and ``close_model``
builds ``onnx_ir`` objects from it. Graph-surgeon's own importer and exporter go through protos and
lose metadata, overloads, doc strings, and the defaults of graph inputs. Here every graph-surgeon
object refers to the object it was imported from:

==================  ===========================================================================
``node.origin``     the ``ir.Node``: metadata, doc string, overload, untouched attributes
``tensor.origin``   the ``ir.Value``: metadata, doc string, type and shape while unchanged
``graph.source``    the ``ir.Graph`` or ``ir.Function``; ``constants`` are in its order
==================  ===========================================================================

The objects are of the classes of `graphs`, which declare these fields.

Guarantees for passes:

* Initializers and ``Constant`` nodes of known value are ``gs.Constant`` tensors. Their data is the
  tensor object of the ``onnx_ir`` model (``graphs.Weight``), read when ``.values`` is read, and the
  same object is exported again: weights are never copied. A ``Constant`` node that produces a graph
  output, refers to a function attribute or holds strings remains a node.
* A graph input with a default (a state) is a ``gs.Variable``: the caller may override it, so it is
  not a constant.
* dtypes are numpy's (``ml_dtypes`` for bfloat16, float8, int4 …), dims are int, str or None.
* Tensor names are unique in a root graph with its subgraphs. Values with one name in sibling
  subgraphs are legal ONNX; the second one gets a suffix, the only change of a round trip.
* Model-level fields (IR version, producer, metadata) are not imported, so they cannot be lost.
* A new ``gs.Constant`` becomes an initializer of the main graph, in a function a ``Constant`` node.

A round trip without a pass keeps order everywhere: the protos are equal byte for byte.
"""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.exporter import Exporter
from coreai_onnx.passes.engine.importer import Importer


def open_model(model: ir.Model) -> gs.Graph:
    """Return the model's graph as a ``gs.Graph``, its functions in ``graph.functions``.

    Neither this call nor later changes of the graph change the model.

    Raises:
        PassError: A node or an output uses a value that nothing produces, or an initializer has
            no data.
    """
    graph = Importer().graph(model.graph, "main")
    graph.producer_name = model.producer_name or ""
    graph.producer_version = model.producer_version or ""
    graph.ir_version = model.ir_version
    graph.functions = [Importer().function(function) for function in model.functions.values()]
    return graph


def close_model(graph: gs.Graph, model: ir.Model) -> None:
    """Replace the graph and functions of ``model`` with ``graph`` and its functions.

    ``model`` is unchanged until the whole graph has been converted.

    Raises:
        PassError: The graph holds something that ONNX cannot represent.
    """
    main = Exporter(graph).graph(graph)
    functions = [Exporter(function).function(function) for function in graph.functions]
    model.graph = main
    model.functions.clear()
    model.functions.update({function.identifier(): function for function in functions})
