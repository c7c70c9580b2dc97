"""Groups of node times, on times made by hand."""

from __future__ import annotations

import pytest

from coreai_onnx.errors import Where
from coreai_onnx.model.provenance.places import Place
from coreai_onnx.runtime.profile.node_times import Execution, NodeTime, Profile
from coreai_onnx.runtime.profile.peaks import Peaks
from coreai_onnx.runtime.profile.timing import Timing
from tests.support.small_models import linear_model

UP = Place(0, "up", "MatMul", Where("layers.0.mlp", "MLP", "m.py:3", "h = x @ w"))
NORM = Place(1, "norm", "ai.coreai::rms_norm", Where("layers.1", "Layer", "m.py:5"))
LAST = Place(2, "last", "MatMul", Where("", "Net", ""))


def made() -> Profile:
    def part(place: Place, body: str) -> Place:
        return Place(place.position, place.node, place.op, place.where, body)

    bodies = (
        NodeTime(UP, "MatMul", (0.004, 0.006, 0.005), flops=100.0, moved=10.0),
        NodeTime(part(NORM, "Mul"), "Mul", (0.001,) * 3),
        NodeTime(part(NORM, "Sqrt"), "Sqrt", (0.002,) * 3),
        NodeTime(LAST, "Gemm", (0.001,) * 3),
    )
    kernels = (
        NodeTime(UP, "MatMul", (0.004,) * 3, flops=200.0, moved=20.0),
        NodeTime(NORM, "rms_norm", (0.001,) * 3, flops=8.0, moved=40.0),
        NodeTime(LAST, "Gemm", (0.003,) * 3),
    )
    torch = (NodeTime(UP, "aten.mm", (0.01,) * 3), NodeTime(UP, "aten.t", (0.02,) * 3))
    executions = (
        Execution(Timing("bodies", (0.01, 0.02)), bodies),
        Execution(Timing("kernels", (0.009, 0.02, 0.01)), kernels, unplaced=0.0005),
        Execution(Timing("torch", (0.1,)), torch),
    )
    return Profile(executions, Peaks(flops=1e5, bandwidth=1e4), linear_model())


def seconds(profile: Profile, grouping) -> dict[str, dict[str, float]]:
    return {
        total.key: {name: round(value, 6) for name, value in total.seconds.items()}
        for total in profile.by(grouping)
    }


def test_a_composite_is_the_sum_of_its_body() -> None:
    assert seconds(made(), "operator") == {
        "MatMul": {"bodies": 0.006, "kernels": 0.007, "torch": 0.03},
        "ai.coreai::rms_norm": {"bodies": 0.003, "kernels": 0.001},
    }
    assert list(seconds(made(), "node")) == ["up", "last", "norm"]
    assert [total.count for total in made().by("operator")] == [2, 1]


def test_a_module_has_the_modules_in_it() -> None:
    times = {key: entry["kernels"] for key, entry in seconds(made(), "module").items()}
    assert times == {
        "(root)": 0.008,
        "layers": 0.005,
        "layers.0": 0.004,
        "layers.0.mlp": 0.004,
        "layers.1": 0.001,
    }


def test_lines_and_their_code() -> None:
    assert set(seconds(made(), "line")) == {"m.py:3", "m.py:5", "(unknown)"}
    assert "h = x @ w" in made().table("line")


def test_work_is_that_of_the_last_execution_in_onnxruntime() -> None:
    profile = made()
    up = next(total for total in profile.by("node") if total.key == "up")
    assert (up.flops, up.moved) == (200.0, 20.0)
    # 200 operations take 2 ms at 1e5 per second, 20 bytes take 2 ms; it took 4 ms
    assert profile.share(up) == pytest.approx(0.5)
    assert profile.main.name == "kernels"
    assert profile["torch"].timing.median == 0.1


def test_text() -> None:
    text = str(made())
    assert "kernels: 3 runs, median 10.000 ms, minimum 9.000 ms, in nodes 8.500 ms" in text
    assert "of these not placed 0.500 ms" in text
    row = next(line for line in text.splitlines() if line.startswith("MatMul"))
    assert row.split() == ["MatMul", "2", "6.000", "7.000", "30.000", "87.5%", "0.0", "0.0", "29%"]
    assert "… and 1 more" in made().table("operator", 1)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="group by node, operator, module, line, not by 'color'"):
        made().by("color")
    with pytest.raises(KeyError):
        made()["gpu"]
