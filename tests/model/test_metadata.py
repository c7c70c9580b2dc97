"""Tests of the metadata of a model, and models that adopt a changed copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from coreai_onnx.model.metadata import (
    ARGUMENTS,
    COMPLEX,
    MUTATED_INPUTS,
    RANGES,
    RELATION_LIMIT,
    RELATIONS,
    STATES,
    Relation,
    StateInfo,
    adopt,
    argument_inputs,
    read_arguments,
    read_complex,
    read_mutated_inputs,
    read_ranges,
    read_relations,
    read_states,
)
from tests.quantization.example_weights import heavy_tailed, linear

Reader = Callable[[Mapping[str, str]], Any]


@pytest.mark.parametrize(
    ("read", "nothing"),
    [
        (read_states, ()),
        (read_mutated_inputs, {}),
        (read_ranges, {}),
        (read_relations, ()),
        (read_complex, frozenset()),
        (read_arguments, None),
    ],
)
def test_a_model_without_entries_has_none(read: Reader, nothing: object) -> None:
    assert read({}) == nothing


def test_entries_are_read() -> None:
    pair = json.dumps([{"input": "cache", "output": "cache_out"}])
    assert read_states({STATES: pair}) == (StateInfo("cache", "cache_out"),)
    assert read_mutated_inputs({MUTATED_INPUTS: pair}) == {"cache_out": "cache"}
    assert read_ranges({RANGES: '{"seq": {"min": 2}}'}) == {"seq": (2, None)}
    conditions = '[{"holds": "(n % 8) == 0"}, {"holds": "n > m", "source": "model.py:7"}]'
    found = read_relations({RELATIONS: conditions})
    assert found == (Relation("(n % 8) == 0"), Relation("n > m", "model.py:7"))
    assert read_complex({COMPLEX: '["z"]'}) == {"z"}


@pytest.mark.parametrize(
    ("read", "key", "text", "message"),
    [
        (read_states, STATES, "{}", "a dict is not a list"),
        (read_states, STATES, '[{"input": "x"}]', "has no text 'output'"),
        (read_ranges, RANGES, "[]", "a list is not a mapping"),
        (read_ranges, RANGES, '{"n": 3}', "the bounds of 'n' are 3"),
        (read_ranges, RANGES, '{"n": {"max": true}}', "max of 'n' is True"),
        (read_complex, COMPLEX, "[1]", "not a list of names"),
        (read_states, STATES, "[" * 10**5, "nested too deeply"),
        (
            read_relations,
            RELATIONS,
            json.dumps([{"holds": "x" * (RELATION_LIMIT + 1)}]),
            "has 4097 characters",
        ),
    ],
)
def test_an_entry_of_another_form_is_an_error(
    read: Reader, key: str, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read({key: text})


def test_arguments_are_named_trees() -> None:
    tree = {"items": [["a", "x"], [7, ["y", {"value": 3}, {"fields": {"left": "z"}}]]]}
    entry = {"positional": [["d", tree], ["", "x2"]], "keyword": [["scale", "s"]]}
    positional, keyword = read_arguments({ARGUMENTS: json.dumps(entry)}) or ([], [])
    assert positional == [("d", tree), ("", "x2")]
    assert keyword == [("scale", "s")]
    assert [*argument_inputs(tree)] == ["x", "y", "z"]


@pytest.mark.parametrize("tree", [3, None, {}, {"items": [1]}, {"items": 3}, [[4]], {"fields": []}])
def test_what_is_no_tree_of_arguments(tree: Any) -> None:
    with pytest.raises(ValueError, match="argument"):
        read_arguments({ARGUMENTS: json.dumps({"positional": [["x", tree]]})})


def test_deep_arguments_are_refused() -> None:
    deep = "[" * 200 + "]" * 200
    with pytest.raises(ValueError, match="nested too deeply"):
        read_arguments({ARGUMENTS: f'{{"positional": [["x", {deep}]]}}'})


def test_graph_and_functions_of_the_copy() -> None:
    model, copy = (linear(heavy_tailed(4, 8, seed)) for seed in (0, 1))
    model.metadata_props["key"] = "value"
    graph = copy.graph
    adopt(copy, model)
    assert model.graph is graph
    assert model.functions == copy.functions
    assert model.metadata_props["key"] == "value"
