"""Decoders and endpoints that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.serving.endpoint import endpoint
from tests.support.endpoints import wait_until_idle, write_folders


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, LanguageModel]:
    """A decoder with a paged cache, and the same with one that grows."""
    paged, growing = write_folders(tmp_path_factory.mktemp("endpoint"))
    return LanguageModel.open(paged, threads=1), LanguageModel.open(growing, threads=1)


@pytest.fixture
def app(models: tuple[LanguageModel, LanguageModel]) -> Any:
    return endpoint(models[0], "llama", slots=4, max_body=4096)


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as started:
        yield started
        wait_until_idle(app.state.engine)
