"""Sentences through Predictor in Ray Data, Dask, Spark and MLflow, beside one process.

    python -m tools.bench.clusters FOLDER ray dask spark mlflow --rows 100000

FOLDER is a sentence encoder of `export_model` with ``include=["tokenizer", "pooling"]``. Every row
must be in each result once, in order, and equal that of one process. Ray has a local cluster of two
nodes with one worker each, one of which is killed after a third of the rows; with ``--rates``, its
rates with one and two workers are printed first, beside those of an actor that is written by hand.
``--words`` limits the length of sentences. Needs
``ray[data]``, ``dask[dataframe,distributed]``, ``pyspark`` (and Java) or ``mlflow``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.scale import Predictor

_WORDS = "a man is eating food while the dog runs over some green hill near our old house".split()
_BATCH = 64
_Result = tuple[list[int], np.ndarray]


def sentences(count: int, words: int = 15) -> list[str]:
    """Return different sentences of at most so many words, and of at least four if there may be."""
    random = np.random.default_rng(0)
    lengths = random.integers(min(4, words), words + 1, count)
    texts = [" ".join(random.choice(_WORDS, length)) for length in lengths]
    return [f"{text} {i}" for i, text in enumerate(texts)]


def predictor(folder: Path) -> Predictor:
    """Return the predictor of all runs, of one thread."""
    return Predictor(**_arguments(folder))


def _arguments(folder: Path) -> dict[str, Any]:
    outputs = {"sentence_embedding": "embedding"}
    inputs = {"text": "sentence"}
    return {
        "model": str(folder), "inputs": inputs, "outputs": outputs,
        "batch_size": _BATCH, "threads": 1, "keep": ["row"],
    }  # fmt: skip


def one_process(folder: Path, texts: list[str]) -> _Result:
    """Return the embeddings of one process."""
    table = {"sentence": np.array(texts, object), "row": np.arange(len(texts))}
    return list(range(len(texts))), predictor(folder)(table)["embedding"]


# --------------------------------------------------------------------------------------------- ray
class Actor:
    """What a user writes by hand: a session of onnxruntime and a loop."""

    def __init__(self, path: str) -> None:
        """Open the model."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the embeddings of a batch."""
        texts = np.array(list(batch["sentence"]), object)
        parts = [
            self.session.run(["sentence_embedding"], {"text": texts[i : i + _BATCH]})[0]
            for i in range(0, len(texts), _BATCH)
        ]
        return {"row": batch["row"], "embedding": np.concatenate(parts)}


def with_ray(folder: Path, texts: list[str], *, rates: bool, rate: float) -> _Result:
    """Kill one of two workers after a third of the rows; perhaps print the rates without that."""
    # Ray starts workers at 15: beside other programs they would get a hundredth of a core.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = [{"sentence": text, "row": i} for i, text in enumerate(texts)]
    data = ray.data.from_items(rows, override_num_blocks=max(len(rows) // 1000, 4)).materialize()

    def run(call: Any, arguments: dict[str, Any], workers: int) -> list[dict[str, Any]]:
        return data.map_batches(
            call,
            fn_constructor_kwargs=arguments,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            batch_size=1000,
            batch_format="numpy",
            max_restarts=-1,
            max_task_retries=-1,
        ).take_all()

    predictor(folder).check(data.schema())
    kinds = (
        ("Predictor", Predictor, _arguments(folder)),
        ("a hand-written actor", Actor, {"path": str(folder / "model.onnx")}),
    )
    for name, call, arguments in kinds if rates else ():
        for workers in (1, 2):
            start = time.perf_counter()
            run(call, arguments, workers)
            rate = len(texts) / (time.perf_counter() - start)
            print(f"ray: {name}, {workers} workers: {rate:.0f} rows/s", flush=True)
    killed: list[int] = []
    killer = threading.Timer(len(texts) / 3 / rate, lambda: killed.append(_kill_a_worker()))
    killer.start()
    start = time.perf_counter()
    result = run(Predictor, _arguments(folder), 2)
    seconds = time.perf_counter() - start
    killer.join()
    print(
        f"ray: {len(texts) / seconds:.0f} rows/s with the worker in process {killed[0]} killed",
        flush=True,
    )
    ray.shutdown()
    cluster.shutdown()
    return [int(x["row"]) for x in result], np.stack([x["embedding"] for x in result])


def _kill_a_worker() -> int:
    titles = subprocess.check_output(["pgrep", "-f", "^ray::.*Predictor"], text=True)
    pid = int(titles.split()[0])
    os.kill(pid, signal.SIGKILL)
    return pid


# -------------------------------------------------------------------------------------------- dask
def with_dask(folder: Path, texts: list[str]) -> _Result:
    """Map the partitions of a data frame in two processes."""
    import dask.dataframe as dd
    import pandas as pd
    from dask.distributed import Client

    frame = pd.DataFrame({"sentence": texts, "row": range(len(texts))})
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        parts = dd.from_pandas(frame, npartitions=8)
        meta = {"row": "int64", "embedding": "object"}
        result = parts.map_partitions(predictor(folder), meta=meta).compute()
    return result["row"].tolist(), np.stack(result["embedding"].to_numpy())


# ------------------------------------------------------------------------------------------- spark
def with_spark(folder: Path, texts: list[str]) -> _Result:
    """Use predict_batch_udf in a local cluster."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import SparkSession
    from pyspark.sql.types import ArrayType, FloatType

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of the workers
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    arguments = _arguments(folder) | {"keep": []}

    def make() -> Callable[[np.ndarray], np.ndarray]:
        predict = Predictor(**arguments)
        return lambda texts: predict({"sentence": texts})["embedding"]

    embed = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=1000)
    frame = spark.createDataFrame(list(enumerate(texts)), ["row", "sentence"])
    result = frame.select("row", embed("sentence").alias("embedding")).collect()
    spark.stop()
    return [x.row for x in result], np.array([x.embedding for x in result], np.float32)


# ------------------------------------------------------------------------------------------ mlflow
def with_mlflow(folder: Path, texts: list[str]) -> _Result:
    """Log the folder as a model of Python functions, load it, and predict."""
    import mlflow
    import pandas as pd

    class Model(mlflow.pyfunc.PythonModel):
        def load_context(self, context: Any) -> None:
            self.predict_rows = Predictor(
                **(_arguments(folder) | {"model": context.artifacts["m"]})
            )

        def predict(self, context: Any, model_input: pd.DataFrame) -> pd.DataFrame:
            return self.predict_rows(model_input)

    with tempfile.TemporaryDirectory() as place:
        mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
        mlflow.pyfunc.save_model(
            f"{place}/saved", python_model=Model(), artifacts={"m": str(folder)}
        )
        loaded = mlflow.pyfunc.load_model(f"{place}/saved")
        result = loaded.predict(pd.DataFrame({"sentence": texts, "row": range(len(texts))}))
    return result["row"].tolist(), np.stack(result["embedding"].to_numpy())


_ENGINES = {"ray": with_ray, "dask": with_dask, "spark": with_spark, "mlflow": with_mlflow}


def main() -> None:
    """Run the engines and compare their results with those of one process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("engines", nargs="+", choices=_ENGINES)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=15)
    parser.add_argument("--rates", action="store_true")
    options = parser.parse_args()
    texts = sentences(options.rows, options.words)
    start = time.perf_counter()
    _, wanted = one_process(options.folder, texts)
    rate = len(texts) / (time.perf_counter() - start)
    print(f"one process: {rate:.0f} rows/s", flush=True)
    for engine in options.engines:
        start = time.perf_counter()
        chosen = {"rates": options.rates, "rate": rate} if engine == "ray" else {}
        rows, embeddings = _ENGINES[engine](options.folder.resolve(), texts, **chosen)
        seconds = time.perf_counter() - start
        assert rows == list(range(len(texts))), "rows are missing, doubled or in another order"
        difference = np.abs(embeddings - wanted).max()
        assert difference < 1e-5, difference
        print(
            f"{engine}: {len(rows)} rows, each once and in order, {seconds:.0f} s in all, ", end=""
        )
        print(f"largest difference from one process {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
