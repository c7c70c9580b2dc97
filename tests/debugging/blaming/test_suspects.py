"""Guilty nodes from right and wrong regions."""

from __future__ import annotations

from coreai_onnx.debugging.blaming.suspects import Suspect, groups
from coreai_onnx.debugging.reference.regions import Region
from tests.support.small_models import linear_model


def region(name: str, *nodes: int) -> Region:
    return Region(name, nodes, (), frozenset((node, 0) for node in nodes))


def test_another_output_does_not_clear_a_node() -> None:
    """The outputs of node 0, a Split, are read by a node each; two of them are exchanged."""
    a, b, c = (
        Region(name, (0, i + 1), (), frozenset({(0, i), (i + 1, 0)}))
        for i, name in enumerate("abc")
    )
    (group,) = groups([a, b], [c])
    assert group.nodes == (0,)


def test_a_node_of_a_right_region_is_cleared() -> None:
    (group,) = groups([region("a", 1, 2, 3)], [region("b", 1, 2)])
    assert group.nodes == (3,)


def test_a_region_of_cleared_nodes_keeps_them() -> None:
    (group,) = groups([region("a", 1, 2)], [region("b", 1), region("c", 2)])
    assert group.nodes == (1, 2)


def test_wrong_regions_that_share_a_node_have_one_cause() -> None:
    found = groups([region("a", 1, 2), region("b", 7), region("c", 1, 3), region("d", 1, 4)], [])
    assert [group.nodes for group in found] == [(1,), (7,)]
    assert [r.value for r in found[0].regions] == ["a", "c", "d"]


def test_a_node_without_a_name_is_named_by_its_result() -> None:
    node = next(iter(linear_model().graph))
    assert Suspect.of(node, {}).name == "→ product"
    node.metadata_props["coreai.source"] = "m.py:3"
    assert Suspect.of(node, {"m.py:3": "  y = x "}).where.code == "y = x"


def test_a_delegated_part_has_the_lines_of_its_debug_handles() -> None:
    node = next(iter(linear_model().graph))
    assert Suspect.of(node, {}).handles == ()
    node.metadata_props["coreai.debug_handles"] = '{"3": "m.py:3   y = x"}'
    assert Suspect.of(node, {}).handles == ((3, "m.py:3   y = x"),)
