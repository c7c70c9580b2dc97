"""``/v1/embeddings``: vectors are those of torch, alone and in a batch, and errors are typed."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import openai
import pytest
import torch
import transformers
from starlette.testclient import TestClient

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation.serving.embeddings import (
    embedding_endpoint,
    is_sentence_encoder,
)
from tests.support.endpoints import error_of, on_a_port, wait_for
from tests.support.huggingface_folders import BERT, tokenizer
from tests.support.tolerances import assert_close

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**BERT)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bert: Any) -> Path:
    source = tmp_path_factory.mktemp("encoder") / "source"
    (source / "1_Pooling").mkdir(parents=True)
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    bert.save_pretrained(source)
    tokenizer().save_pretrained(source)
    export_model(source, source.parent / "folder", check=False)
    return source.parent / "folder"


@pytest.fixture
def app(folder: Path) -> Any:
    return embedding_endpoint(folder, "bert", max_body=8192, threads=1)


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as started:
        yield started


def wanted(bert: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return bert(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()


def test_vectors(bert: Any, client: TestClient) -> None:
    texts = [f"{i} {'ab' * (i % 13)} ä" for i in range(70)]
    rows = [tokenizer()(text)["input_ids"] for text in texts]
    expected = np.stack([wanted(bert, row) for row in rows])
    for asked in (texts, rows):
        answer = client.post(PATH, json={"model": "bert", "input": asked}).json()
        assert [entry["index"] for entry in answer["data"]] == list(range(70))
        vectors = np.float32([entry["embedding"] for entry in answer["data"]])
        assert_close(vectors, expected)
        count = sum(map(len, rows))
        assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
        assert answer["model"] == "bert"
    for one in (texts[5], rows[5]):
        asked = {"input": one, "encoding_format": "base64"}
        (entry,) = client.post(PATH, json=asked).json()["data"]
        decoded = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        assert_close(decoded, expected[5])


def test_openais_client(bert: Any, app: Any) -> None:
    with on_a_port(app) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="-") as client:
        answer = client.embeddings.create(model="bert", input=["ab", "ä"])
        rows = [tokenizer()(text)["input_ids"] for text in ("ab", "ä")]
        vectors = np.float32([entry.embedding for entry in answer.data])
        assert_close(vectors, np.stack([wanted(bert, row) for row in rows]))


@pytest.mark.parametrize(
    ("request_", "status", "param"),
    [
        *[
            ({"input": x}, 400, "input")
            for x in (None, [], 5, {}, [5, "a"], ["a", 5], [[]], [True])
        ],
        ({"input": ["a"] * 2049}, 413, None),
        ({"input": [1] * 65}, 400, "input"),
        ({"input": "a" * 65}, 400, "input"),
        ({"input": [[5], [260]]}, 400, "input"),
        ({"input": [-1]}, 400, "input"),
        ({"input": "\ud800"}, 400, None),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": "a", "dimensions": 8}, 400, "dimensions"),
        ({"input": "a", "model": "other"}, 404, "model"),
    ],
)
def test_wrong_requests(
    client: TestClient, request_: dict[str, Any], status: int, param: str | None
) -> None:
    response = client.post(
        PATH, content=json.dumps(request_), headers={"content-type": "application/json"}
    )
    assert response.status_code == status
    assert error_of(response)["param"] == param
    assert client.post(PATH, json={"input": "a"}).status_code == 200


def test_too_many_texts(folder: Path) -> None:
    with TestClient(embedding_endpoint(folder, "bert", threads=1)) as client:
        response = client.post(PATH, json={"input": ["a"] * 2049})
    assert error_of(response)["message"] == "input has more than 2048 texts"


def test_other_routes(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/models/bert").json()["id"] == "bert"
    client.post(PATH, json={"input": "abc"})
    lines = client.get("/metrics").text.splitlines()
    assert f'coreai_onnx_requests_total{{route="{PATH}",status="200"}} 1.0' in lines
    assert "coreai_onnx_prompt_tokens_total 3.0" in lines
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 404


class Held:
    """Holds the batches of an encoder until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from coreai_onnx.huggingface.generation.serving import embeddings

        self.opened, self.reached, self.runs = threading.Event(), threading.Event(), 0
        self._vectors = embeddings._Encoder.vectors
        monkeypatch.setattr(embeddings._Encoder, "vectors", self._held())

    def _held(self) -> Any:
        def vectors(encoder: Any, rows: Any) -> Any:
            self.reached.set()
            self.runs += 1
            assert self.opened.wait(60)
            return self._vectors(encoder, rows)

        return vectors


def test_queue_and_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    app = embedding_endpoint(folder, "bert", queue=1, timeout=1, threads=1)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            posts = [client.post(PATH, json={"input": "a"}) for _ in range(4)]
            codes = [answer.status_code for answer in await asyncio.gather(*posts)]
        held.opened.set()  # or the end of the loop would wait for the thread of the batch
        return codes

    # One runs, one waits, and both take too long.
    assert sorted(asyncio.run(asyncio.wait_for(ask(), 30))) == [429, 429, 504, 504]


def test_a_client_that_goes_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    app = embedding_endpoint(folder, "bert", threads=1)
    with on_a_port(app) as address, httpx.Client(base_url=address, timeout=0.5) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(PATH, json={"input": ["a"] * 100})
        gone = f'coreai_onnx_requests_total{{route="{PATH}",status="499"}} 1.0'
        wait_for(lambda: gone in client.get("/metrics").text)
        held.opened.set()
        assert client.post(PATH, json={"input": "a"}, timeout=60).status_code == 200
    # One batch of the request whose client is gone, and that of the next one.
    assert held.runs == 2


def test_a_model_that_fails(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    from coreai_onnx.runtime.sessions.session import Session

    with monkeypatch.context() as patch:
        vectors = np.full((1, 32), np.nan, np.float32)
        patch.setattr(Session, "run", lambda *_, **__: {"sentence_embedding": vectors})
        response = client.post(PATH, json={"input": "a"})
    assert response.status_code == 500
    assert "not finite" in error_of(response)["message"]
    assert client.post(PATH, json={"input": "a"}).status_code == 200


def test_other_folders(folder: Path, tmp_path: Path, models: Any) -> None:
    assert is_sentence_encoder(folder)
    assert not is_sentence_encoder(tmp_path)
    (tmp_path / "model.onnx").symlink_to(folder / "model.onnx")
    with pytest.raises(GenerationError, match="needs a tokenizer"):
        embedding_endpoint(tmp_path, "bert")
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(GenerationError, match="cannot read"):
        is_sentence_encoder(tmp_path)
