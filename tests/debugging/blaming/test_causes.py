"""Wrong nodes from right and wrong regions."""

from __future__ import annotations

from coreai_onnx.debugging.blaming.causes import LocatedNode, causes_of
from coreai_onnx.debugging.reference.regions import Region
from tests.support.small_models import linear_model


def region(name: str, *nodes: int) -> Region:
    return Region(name, nodes, (), frozenset((node, 0) for node in nodes))


def test_a_node_may_be_wrong_although_another_output_is_right() -> None:
    """The outputs of node 0, a Split, are read by a node each; two of them are exchanged."""
    a, b, c = (
        Region(name, (0, i + 1), (), frozenset({(0, i), (i + 1, 0)}))
        for i, name in enumerate("abc")
    )
    (cause,) = causes_of([a, b], [c])
    assert cause.nodes == (0,)


def test_a_node_of_a_right_region_is_right() -> None:
    (cause,) = causes_of([region("a", 1, 2, 3)], [region("b", 1, 2)])
    assert cause.nodes == (3,)


def test_a_wrong_region_of_right_nodes_keeps_them() -> None:
    (cause,) = causes_of([region("a", 1, 2)], [region("b", 1), region("c", 2)])
    assert cause.nodes == (1, 2)


def test_wrong_regions_that_share_a_node_have_one_cause() -> None:
    found = causes_of([region("a", 1, 2), region("b", 7), region("c", 1, 3), region("d", 1, 4)], [])
    assert [cause.nodes for cause in found] == [(1,), (7,)]
    assert [r.value for r in found[0].regions] == ["a", "c", "d"]


def test_a_node_without_a_name_is_named_by_its_result() -> None:
    node = next(iter(linear_model().graph))
    assert LocatedNode.of(node, {}).name == "→ product"
    node.metadata_props["coreai.source"] = "m.py:3"
    assert LocatedNode.of(node, {"m.py:3": "  y = x "}).where.code == "y = x"


def test_a_delegated_part_has_the_lines_of_its_debug_handles() -> None:
    node = next(iter(linear_model().graph))
    assert LocatedNode.of(node, {}).handles == ()
    node.metadata_props["coreai.debug_handles"] = '{"3": "m.py:3   y = x"}'
    assert LocatedNode.of(node, {}).handles == ((3, "m.py:3   y = x"),)
