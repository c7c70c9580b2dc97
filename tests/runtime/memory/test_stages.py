"""Models as stages, which together compute what the whole does, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import InputError, StagingError
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import add_model, parse

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
COUNT = 4
SIZE = 16
WEIGHT = SIZE * SIZE * 4


def layers(*, last: int = SIZE, tied: bool = False) -> ir.Model:
    """Layers ``x = tanh(x @ w + c)``, each with a state ``c`` that becomes ``x``."""
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights = [], [f"float[n, {SIZE}] x"], [], []
    for i in range(COUNT):
        size = last if i == COUNT - 1 else SIZE
        nodes += [
            f"p{i} = MatMul({'x' if i == 0 else f'h{i - 1}'}, w{0 if tied else i})",
            f"a{i} = Add(p{i}, c{i})",
            f"h{i} = Tanh(a{i})",
            f"n{i} = Identity(a{i})",
        ]
        inputs.append(f"float[n, {size}] c{i}")
        outputs.append(f"float[n, {size}] n{i}")
        numbers = ", ".join(map(str, rng.standard_normal(SIZE * size).round(3) / 4))
        weights += [f"float[{SIZE}, {size}] w{i} = {{{numbers}}}"] if i == 0 or not tied else []
    outputs.append(f"float[n, {last}] h{COUNT - 1}")
    text = f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) <{', '.join(weights)}>"
    states = [{"input": f"c{i}", "output": f"n{i}"} for i in range(COUNT)]
    model = parse(f"{HEADER} {text} {{ {' '.join(nodes)} }}", {"coreai.states": states})
    for i, node in enumerate(model.graph):
        node.metadata_props["coreai.scope"] = f"net.{i // 4}"
    return model


def feeds(rows: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).standard_normal((rows, SIZE)).astype(np.float32)
    return {"x": x, **{f"c{i}": np.zeros((rows, SIZE), np.float32) for i in range(COUNT)}}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_compute_what_the_whole_does(stages: int) -> None:
    program = OnnxProgram({"main": layers()})
    pipeline = program.split(stages, feeds(3))
    assert len(pipeline.stages) == stages
    given, session = feeds(5), program.session()
    for call in range(3):
        now = given if call == 0 else {"x": given["x"] + call}
        whole, result = session.run(**now), pipeline.run(**now)
        assert list(result) == ["h3"]
        np.testing.assert_array_equal(result["h3"], np.asarray(whole["h3"]))


def test_each_stage_is_a_file_with_its_weights_and_states(tmp_path: Path) -> None:
    program = OnnxProgram({"main": layers()})
    values = feeds(3)
    whole = program.run(**values)
    for i, stage in enumerate(program.split(2, values).stages):
        stage.save(tmp_path / f"{i}.onnx")
        opened = OnnxProgram.load(tmp_path / f"{i}.onnx")
        assert sorted(opened.model.graph.initializers) == [f"w{2 * i}", f"w{2 * i + 1}"]
        session = opened.session()
        assert session.states == (f"c{2 * i}", f"c{2 * i + 1}")
        names = [x.name for x in session.inputs]
        assert names == (["x"] if i == 0 else ["h1"])
        values |= session.run(**{name: values[name] for name in (*names, *session.states)})
    np.testing.assert_array_equal(np.asarray(values["h3"]), np.asarray(whole["h3"]))


def test_the_costs_are_those_of_the_plan() -> None:
    pipeline = OnnxProgram({"main": layers()}).split(2, feeds(3))
    rows = 3 * SIZE * 4
    for i, cost in enumerate(pipeline.costs):
        assert cost.modules == (f"net.{2 * i}", f"net.{2 * i + 1}")
        assert cost.weights == 2 * WEIGHT
        assert cost.states == 2 * rows
        assert cost.results >= rows
        assert cost.memory == cost.weights + cost.states + cost.results
        assert cost.received == (0 if i == 0 else rows)
    assert "net.2 – net.3" in str(pipeline)


def test_shared_weights_are_in_each_stage() -> None:
    pipeline = OnnxProgram({"main": layers(tied=True)}).split(3, feeds(3))
    assert [cost.weights for cost in pipeline.costs] == [WEIGHT] * 3
    assert [list(s.model.graph.initializers) for s in pipeline.stages] == [["w0"]] * 3


def test_a_large_module_is_alone() -> None:
    model = layers(last=40 * SIZE)
    values = feeds(3) | {"c3": np.zeros((3, 40 * SIZE), np.float32)}
    pipeline = OnnxProgram({"main": model}).split(2, values)
    assert [cost.modules for cost in pipeline.costs] == [("net.0", "net.2"), ("net.3", "net.3")]


def test_the_program_is_unchanged() -> None:
    program = OnnxProgram({"main": layers()})
    before = program.to_proto().SerializeToString()
    program.split(2, feeds(3))
    assert program.to_proto().SerializeToString() == before


def test_a_state_that_modules_share_is_not_split() -> None:
    model = layers()
    last = next(node for node in model.graph if node.outputs[0].name == "a3")
    first = next(value for value in model.graph.inputs if value.name == "c0")
    last.replace_input_with(1, first)
    with pytest.raises(StagingError, match="cannot be cut to 2 stages: there are 0 places"):
        OnnxProgram({"main": model}).split(2, feeds(3))


def test_what_cannot_be_split() -> None:
    program = OnnxProgram({"main": layers()})
    with pytest.raises(StagingError, match="stages must be at least 2, got 1"):
        program.split(1, feeds(3))
    with pytest.raises(StagingError, match="cannot be cut to 5 stages: there are 3 places"):
        program.split(5, feeds(3))
    with pytest.raises(StagingError, match="cannot be cut to 2 stages: there are 0 places"):
        OnnxProgram({"main": add_model()}).split(2)
    with pytest.raises(InputError, match="no dim 'depth'"):
        program.split(2, sizes={"depth": 3})
    pipeline = program.split(2, feeds(3))
    with pytest.raises(InputError, match=r"inputs must be x: float32\[n, 16\], got z"):
        pipeline.run(z=feeds(3)["x"])
