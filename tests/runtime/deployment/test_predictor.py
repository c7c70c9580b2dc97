"""Predictions over tables."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pyarrow as pa
import pytest

from coreai_onnx.errors import InputError, LoadError, SessionError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.deployment import predictor
from coreai_onnx.scale import Predictor
from tests.support.small_models import counter_model, linear_model, linear_weights, parse
from tests.support.tolerances import assert_close

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
SUMS = f"""{HEADER} agraph (int64[n, s] ids, int64[n, s] attention_mask)
=> (int64[n] total, int64[n, s] kept) {{
    kept = Mul(ids, attention_mask)  one = Constant<value_ints = [1]>()
    total = ReduceSum<keepdims = 0>(kept, one)
}}"""
FIXED = (
    f"""{HEADER} agraph (float[4, 2] x, float scale) => (float[4, 2] y) {{ y = Mul(x, scale) }}"""
)
TEXTS = f"""{HEADER} agraph (string[n] text) => (string[n] louder) <string[1] end = {{"!"}}> {{
    louder = StringConcat(text, end)
}}"""


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(model: ir.Model | str, **options: Any) -> Path:
        program = OnnxProgram({"main": parse(model) if isinstance(model, str) else model})
        program.save(tmp_path / "model.onnx", **options)
        return tmp_path / "model.onnx"

    return save


def lists(*rows: Any) -> np.ndarray:
    column = np.empty(len(rows), object)
    column[:] = [np.array(row) for row in rows]
    return column


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 8)).astype(np.float32)


def test_arrays(saved: Any) -> None:
    x, weights = rows(7), linear_weights()
    predict = Predictor(saved(linear_model()), batch_size=3)
    result = predict({"x": x, "name": np.arange(7)})
    assert list(result) == ["x", "name", "y"]
    assert_close(result["y"], x @ weights["weight"] + weights["bias"])
    assert "float32[batch, 8] of 'x' → y" in repr(predict)


def test_lists_are_padded_and_keep_their_order(saved: Any) -> None:
    ids = [list(range(1, 1 + length)) for length in (3, 9, 1, 4, 16, 2)]
    predict = Predictor(saved(SUMS), batch_size=2, lengths=[4, 16], fill={"ids": 7})
    result = predict({"ids": lists(*ids)})
    assert result["total"].tolist() == [sum(row) for row in ids]
    # Beside each other are rows of similar length, and padding is no more than needed.
    assert [len(row) for row in result["kept"]] == [4, 16, 4, 4, 16, 4]


def test_a_mask_of_the_table_is_taken(saved: Any) -> None:
    table = {"ids": np.ones((2, 3), int), "attention_mask": np.array([[1, 0, 0], [1, 1, 0]])}
    assert Predictor(saved(SUMS))(table)["total"].tolist() == [1, 2]


def test_a_fixed_number_of_rows_is_filled(saved: Any) -> None:
    predict = Predictor(saved(FIXED), constants={"scale": np.float32(2)}, outputs={"y": "double"})
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert_close(predict({"x": x})["double"], 2 * x)


def test_texts(saved: Any) -> None:
    predict = Predictor(saved(TEXTS), inputs={"text": "word"}, keep=[])
    texts = ["a", "long one", "mid"]
    result = predict(pa.table({"word": texts}))
    assert result.to_pydict() == {"louder": ["a!", "long one!", "mid!"]}
    assert predict({"word": np.array(texts)})["louder"].tolist() == ["a!", "long one!", "mid!"]


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch])
def test_arrow(saved: Any, kind: Any) -> None:
    x = rows(5)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 8)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    predict = Predictor(saved(linear_model()))
    want = predict({"x": x})["y"]
    for given in (column, tensors, pa.array(x.tolist())):
        table = kind({"x": given, "n": pa.array(range(5))})
        predict.check(table.schema)
        result = predict(table)
        assert type(result) is type(table)
        assert result.schema.field("y").type == pa.list_(pa.float32(), 64)
        assert_close(np.array(result["y"].to_pylist(), np.float32), want)
    assert predict(pa.table({"x": column}).slice(0, 0)).num_rows == 0


def test_pieces_and_results_of_any_length_of_arrow(saved: Any) -> None:
    table = pa.concat_tables([pa.table({"ids": [[1, 2]]}), pa.table({"ids": [[3]]})])
    result = Predictor(saved(SUMS), keep=["ids"])(table)
    assert result["total"].to_pylist() == [3, 3]
    assert result["kept"].to_pylist() == [[1, 2], [3, 0]]
    assert result.schema.field("kept").type == pa.list_(pa.int64())


def test_integers_and_floats_are_converted_if_nothing_is_lost(saved: Any) -> None:
    predict = Predictor(saved(linear_model()))
    x = rows(2)
    assert_close(predict({"x": x.astype(np.float64)})["y"], predict({"x": x})["y"])
    sums = Predictor(saved(SUMS))
    assert sums({"ids": np.ones((2, 3), np.uint8)})["total"].tolist() == [3, 3]


def test_a_pickled_one_runs_in_another_process(saved: Any, tmp_path: Path) -> None:
    predict = Predictor(saved(linear_model()), threads=1)
    predict.open()
    assert len(pickle.dumps(predict)) < 5_000  # neither weights nor a session
    (tmp_path / "p.pickle").write_bytes(pickle.dumps(predict))
    code = f"""
import pickle, sys
import numpy as np
from pathlib import Path
predict = pickle.loads(Path({str(tmp_path / "p.pickle")!r}).read_bytes())
print(predict({{"x": np.ones((2, 8), np.float32)}})["y"].sum(), "torch" in sys.modules)
"""
    want = predict({"x": np.ones((2, 8), np.float32)})["y"].sum()
    total, torch = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert_close(np.float32(total), want)
    assert torch == "False"


def test_equal_ones_share_a_session_and_threads_take_turns(saved: Any) -> None:
    path = saved(linear_model())
    before = len(predictor._all_opened)
    results: list[np.ndarray] = []

    def call() -> None:
        results.append(Predictor(path, threads=1)({"x": rows(64)})["y"])

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(predictor._all_opened) == before + 1
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("external", [False, True])
def test_a_file_that_has_changed_is_refused(saved: Any, external: bool) -> None:
    path = saved(linear_model(), external_data=external)
    predict = Predictor(path)
    saved(linear_model(seed=1), external_data=external)
    for act in (lambda: predict({"x": rows(1)}), lambda: predict.check({"x": rows(1)})):
        with pytest.raises(SessionError, match="has changed since the predictor was made"):
            act()


def test_a_data_file_that_has_changed_is_refused(saved: Any) -> None:
    path = saved(linear_model(), external_data=True)
    predict = Predictor(path)
    data = path.with_name("model.onnx.data")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    with pytest.raises(SessionError, match="has changed since the predictor was made"):
        predict.open()


def test_another_version_is_refused(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    predict = pickle.loads(pickle.dumps(Predictor(saved(linear_model()))))
    monkeypatch.setattr(predictor, "__version__", "99.0")
    with pytest.raises(SessionError, match=r"was made by version .*, and this process has 99\.0"):
        predict({"x": rows(1)})


def test_models_that_no_table_fits(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="states, count: its rows depend on their order"):
        Predictor(saved(counter_model()))
    with pytest.raises(LoadError, match="no such file"):
        Predictor(tmp_path / "nowhere.onnx")
    with pytest.raises(InputError, match="has no axis of rows: give it in constants"):
        Predictor(saved(FIXED))
    one = f"{HEADER} agraph (float[n, 2] x) => (float[2] y) {{ y = ReduceSum<keepdims = 0>(x, z) }}"
    path = saved(one.replace("{", "<int64[1] z = {0}> {"))
    with pytest.raises(InputError, match=r"'y' has the shape \[2\] for 3 rows"):
        Predictor(path)({"x": np.ones((3, 2), np.float32)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {"z": "x"}}, "the model has no input 'z'; inputs: x"),
        ({"outputs": ["z"]}, "the model has no output 'z'; outputs: y"),
        ({"constants": {"z": 1}}, "no input 'z'"),
        ({"fill": {"z": 1}}, "no input 'z'"),
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"lengths": [0, 4]}, "lengths must be positive, got 0"),
    ],
)
def test_wrong_options(saved: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Predictor(saved(linear_model()), **options)


WIDE = np.ones((2, 9), np.float32)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "needs the column 'x'; columns: none"),
        ({"x": WIDE}, r"has the shape \[9\], and the model takes x: float32\[batch, 8\]"),
        ({"x": np.ones(2, np.float32)}, r"has the shape \[\]"),
        ({"x": WIDE[:, :8] > 0, "y": WIDE}, "would replace the column 'y'"),
        ({"x": np.ones((2, 8), complex)}, "has the dtype complex128"),
        ({"x": np.full((2, 8), "a")}, "has the dtype <U1"),
        ({"x": lists([1.0] * 8, [1.0] * 7)}, r"row 1: 'x' has the shape \[7\]"),
        ({"x": np.array([None, [1.0] * 8], object)}, "row 0: 'x' must be numbers, got NoneType"),
        (3, "a table must be a mapping of arrays, of pandas or of Arrow, got int"),
        (pa.table({"x": [[1.0] * 8, None]}), "row 1: the column 'x' is null"),
    ],
)
def test_tables_that_do_not_fit(saved: Any, table: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Predictor(saved(linear_model()))(table)


def test_rows_that_do_not_fit(saved: Any) -> None:
    predict = Predictor(saved(SUMS), lengths=[4])
    with pytest.raises(InputError, match=r"row 1: ids: int64\[n, s\] has 5 elements, more than 4"):
        predict({"ids": lists([1], [1] * 5)})
    with pytest.raises(InputError, match="row 0: 'ids' has the dtype float64"):
        predict({"ids": lists([1.5], [1])})
    with pytest.raises(InputError, match="'ids': a number does not fit int64"):
        predict({"ids": np.array([[2**63]], np.uint64)})
    with pytest.raises(InputError, match=r"different numbers of rows: \[1, 2\]"):
        predict({"ids": lists([1], [1]), "attention_mask": lists([1])})
    with pytest.raises(InputError, match=r"row 1: text: .* must be a text, got a value of int"):
        Predictor(saved(TEXTS))({"text": ["a", 1]})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"x": "complex64"}, "x has the dtype complex64, and the model takes"),
        ({"z": "float32"}, "needs the column 'x'; columns: z"),
        ({"x": WIDE}, r"x has the shape \[9\]"),
        (pa.schema({"x": pa.list_(pa.float32(), 9)}), r"x has the shape \[9\]"),
        (pa.schema({"x": pa.fixed_shape_tensor(pa.float32(), [9])}), r"x has the shape \[9\]"),
        (pa.schema({"x": pa.string()}), "x has the "),
        (3, "a int is neither a table nor a schema"),
    ],
)
def test_schemas_that_do_not_fit(saved: Any, schema: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Predictor(saved(linear_model())).check(schema)


def test_schemas_that_fit(saved: Any) -> None:
    predict = Predictor(saved(linear_model()), keep=[])
    column = pa.list_(pa.float64(), 8)
    for schema in ({"x": "float64", "y": int}, {"x": rows(1)}, pa.schema({"x": column})):
        predict.check(schema)
    Predictor(saved(SUMS)).check(pa.schema({"ids": pa.list_(pa.int32())}))
    with pytest.raises(InputError, match="there is no column 'n' to keep"):
        Predictor(saved(SUMS), keep=["n"]).check({"ids": object})
