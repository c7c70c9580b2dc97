"""Packages of `coreai_onnx.scale.package`, read by what they are for.

    python -m tools.bench.servers FOLDER triton kserve mlflow

FOLDER is a sentence encoder of `export_model` with ``include=["tokenizer", "pooling"]``. The
configuration of Triton is parsed as ``tritonclient[grpc]`` defines it. KServe's server is started
and called by ``tritonclient[http]``, with texts as JSON and as bytes, several at once, and with a
mistake. MLflow logs, registers and loads the model. Results must equal those of a session. Needs
``kserve``, ``tritonclient[http,grpc]`` and ``mlflow``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.deployment.predictor import run_arrays
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.scale import log_model, package

_TEXTS = np.array(["A man is eating.", "Someone has lunch.", "Über den Wolken"], object)
_PORT = 18080


def with_triton(folder: Path, place: Path, wanted: np.ndarray) -> str:
    """Parse the configuration by the definition that the client has."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

    package(folder, place / "models", "triton", name="minilm", batch_size=32, threads=2)
    root = place / "models" / "minilm"
    config = text_format.Parse((root / "config.pbtxt").read_text(), ModelConfig())
    assert config.name == "minilm"
    assert config.max_batch_size == 32
    assert config.HasField("dynamic_batching")
    (text,) = config.input
    assert (text.name, text.data_type) == ("text", DataType.TYPE_STRING)
    assert list(text.dims) == [1]
    assert text.HasField("reshape")
    assert not text.reshape.shape
    names = {x.name: (DataType.Name(x.data_type), list(x.dims)) for x in config.output}
    assert names["sentence_embedding"] == ("TYPE_FP32", [384])
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    libraries = list(config.model_operations.op_library_filename)
    assert [Path(x).name for x in libraries] == ["libcoreai_onnx_ops.so"]
    # What the server does with the configuration: onnxruntime, these libraries, this file.
    import onnxruntime as ort

    options = ort.SessionOptions()
    for library in libraries:
        options.register_custom_ops_library(library)
    opened = ort.InferenceSession(str(root / "1" / "model.onnx"), options)
    (result,) = opened.run(["sentence_embedding"], {"text": _TEXTS})
    _assert_equal(result, wanted)
    return "parsed, kernels registered, results equal"


def with_kserve(folder: Path, place: Path, wanted: np.ndarray) -> str:
    """Start the server of the package, and call it."""
    from tritonclient import http
    from tritonclient.utils import InferenceServerException

    package(folder, place / "server", "kserve", name="minilm", threads=1)
    words = [sys.executable, str(place / "server" / "server.py"), f"--http_port={_PORT}"]
    server = subprocess.Popen([*words, "--enable_grpc=false"])
    try:
        client = http.InferenceServerClient(f"127.0.0.1:{_PORT}", concurrency=8)
        _wait_for(client, server)
        metadata = client.get_model_metadata("minilm")
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]

        def start(texts: np.ndarray, *, binary: bool, name: str = "text"):
            given = http.InferInput(name, list(texts.shape), "BYTES")
            given.set_data_from_numpy(texts, binary_data=binary)
            output = http.InferRequestedOutput("sentence_embedding", binary_data=binary)
            # The client names no type of JSON, which the server needs.
            headers = None if binary else {"Content-Type": "application/json"}
            return client.async_infer("minilm", [given], outputs=[output], headers=headers)

        def ask(texts: np.ndarray, **options) -> np.ndarray:
            return start(texts, **options).get_result().as_numpy("sentence_embedding")

        for binary in (False, True):
            _assert_equal(ask(_TEXTS, binary=binary), wanted)
        pending = [start(_TEXTS[i % 3 :][:1], binary=True) for i in range(60)]
        for i, one in enumerate(pending):
            row = one.get_result().as_numpy("sentence_embedding")
            _assert_equal(row, wanted[i % 3 :][:1])
        error = _refusal(InferenceServerException, lambda: ask(_TEXTS, binary=True, name="txt"))
        assert "inputs must be text: string[" in str(error), error
        assert error.status() == "400", error.status()
        begin = time.perf_counter()
        for _ in range(100):
            ask(_TEXTS, binary=True)
        return f"{(time.perf_counter() - begin) * 10:.1f} ms a request of 3 rows, results equal"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(client, server: subprocess.Popen) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server has ended"
        try:
            if client.is_model_ready("minilm"):
                return
        except (ConnectionError, OSError):
            pass
        time.sleep(0.2)
    raise AssertionError("the server is not ready after two minutes")


def with_mlflow(folder: Path, place: Path, wanted: np.ndarray) -> str:
    """Log and register a file with a data file, and predict; load what `package` wrote."""
    import mlflow
    import pandas as pd

    mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
    mlflow.set_experiment(
        experiment_id=mlflow.create_experiment("test", artifact_location=(place / "runs").as_uri())
    )
    file = place / "minilm.onnx"
    OnnxProgram.load(folder / "model.onnx").save(file, external_data=True)
    with mlflow.start_run():
        info = log_model(
            file, "minilm", batch_size=2, threads=1, provider="cpu", kernels=True,
            registered_model_name="minilm",
        )  # fmt: skip
    loaded = mlflow.pyfunc.load_model("models:/minilm/1")
    result = loaded.predict({"text": _TEXTS})
    _assert_equal(np.stack(result["sentence_embedding"]), wanted)
    frame = loaded.predict(pd.DataFrame({"text": _TEXTS}))
    _assert_equal(np.stack(frame["sentence_embedding"]), wanted)
    opened = loaded._model_impl.predictor._shared_session().session
    assert opened.kernels
    flavor = info.flavors["coreai_onnx"]
    assert (flavor["threads"], flavor["kernels"]) == (1, True), flavor
    assert [name for name, _ in flavor["providers"]] == ["CPUExecutionProvider"], flavor
    assert loaded.metadata.signature.inputs.input_names() == ["text"]
    error = _refusal(mlflow.exceptions.MlflowException, lambda: loaded.predict({"txt": _TEXTS}))
    assert "text" in str(error), error
    package(folder, place / "saved", "mlflow", threads=1)
    again = mlflow.pyfunc.load_model(str(place / "saved"))
    _assert_equal(np.stack(again.predict({"text": _TEXTS})["sentence_embedding"]), wanted)
    return "logged, registered, loaded, results equal"


def _refusal(kind: type[Exception], call: Callable[[], object]) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("an unknown input was accepted")


def _assert_equal(result: np.ndarray, wanted: np.ndarray) -> None:
    # Rows that are run together are padded to one length, which changes sums in their last bits.
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-6)


_READERS = {"triton": with_triton, "kserve": with_kserve, "mlflow": with_mlflow}


def main() -> None:
    """Write the packages and compare what reads them with a session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("readers", nargs="+", choices=_READERS)
    options = parser.parse_args()
    opened = session(options.folder / "model.onnx", threads=1)
    wanted = run_arrays(opened, {"text": _TEXTS}, ["sentence_embedding"])["sentence_embedding"]
    for reader in options.readers:
        with tempfile.TemporaryDirectory() as place:
            print(f"{reader}: {_READERS[reader](options.folder, Path(place), wanted)}", flush=True)


if __name__ == "__main__":
    main()
