"""The Open Inference Protocol v2, by KServe's server on a session with kernels.

folder/model.onnx                with its data files
folder/server.py                 python server.py --http_port=8080
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.errors import InputError, SaveError
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.deployment.packaged_file import SERVER_TYPES, PackagedFile, sizes_of
from coreai_onnx.runtime.deployment.predictor import run_arrays
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.tensors.columns import Array

_TYPES = {**SERVER_TYPES, "string": "BYTES"}
"""Names of dtypes in the protocol, as far as KServe's server knows them."""
_SCRIPT = '''\
"""Serves {name} by the Open Inference Protocol v2: python server.py --http_port=8080"""

from pathlib import Path

from coreai_onnx.runtime.deployment.kserve_server import serve

if __name__ == "__main__":
    serve({name}, Path(__file__).with_name("{file}"), **{settings})
'''


def write_server(packaged: PackagedFile, folder: Path) -> None:
    """Write the file and a script that serves it.

    Raises:
        SaveError: If the protocol has no such dtype, or a setting cannot be written.
    """
    for info in (*packaged.interface.inputs, *packaged.interface.outputs):
        if info.dtype not in _TYPES:
            raise SaveError(f"KServe's server has no type for {info}")
    packaged.copy(folder)
    name, settings = json.dumps(packaged.name), packaged.stored_settings
    script = _SCRIPT.format(name=name, file=MODEL_FILE, settings=repr(settings))
    (folder / "server.py").write_text(script, "utf-8")


def serve(name: str, file: Path, **settings: Any) -> None:
    """Serve a file until the process ends; the command line has the options of KServe's server.

    Args:
        name: The name of the model in addresses.
        file: The ``.onnx`` file.
        **settings: Settings of `coreai_onnx.session`.

    Raises:
        SessionError: If the file cannot be opened.
    """
    import kserve

    model = served_model(name, file, **settings)
    kserve.ModelServer().start([model])


def served_model(name: str, file: Path, **settings: Any) -> Any:
    """Return a model of KServe's server, for a server with several.

    Raises:
        SessionError: If the file cannot be opened.
    """
    import kserve  # a server is all that needs it

    opened = session(file, **settings)

    class ServedModel(kserve.Model):
        def get_input_types(self) -> list[dict[str, Any]]:
            return [_described(info) for info in opened.inputs]

        def get_output_types(self) -> list[dict[str, Any]]:
            return [_described(info) for info in opened.outputs]

        async def predict(self, payload: Any, headers: Any = None) -> Any:
            del headers
            if not isinstance(payload, kserve.InferRequest):
                raise kserve.errors.InvalidInput("requests must be of protocol version 2")
            feeds = {one.name: _array(one) for one in payload.inputs}
            try:
                # In a thread, so that the server answers others meanwhile.
                results = await asyncio.to_thread(run_arrays, opened, feeds)
            except InputError as error:
                raise kserve.errors.InvalidInput(str(error)) from error
            return kserve.InferResponse(
                response_id=payload.id or "",
                model_name=self.name,
                infer_outputs=[
                    kserve.InferOutput(
                        x.name, list(results[x.name].shape), _TYPES[x.dtype], results[x.name]
                    )
                    for x in opened.outputs
                ],
                use_binary_outputs=payload.use_binary_outputs,
                requested_outputs=payload.request_outputs,
            )

    model = ServedModel(name)
    model.load()
    return model


def _described(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": _TYPES[info.dtype], "shape": sizes_of(info)}


def _array(given: Any) -> Array:
    array: Array = given.as_numpy()
    if array.dtype != object:
        return array
    texts = [x.decode() if isinstance(x, bytes) else x for x in array.flat]
    return np.array(texts, object).reshape(array.shape)
