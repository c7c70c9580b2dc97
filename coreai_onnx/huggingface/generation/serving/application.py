"""What all endpoints have in common: routes, limits, errors and numbers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coreai_onnx.errors import GenerationError, RequestError
from coreai_onnx.huggingface.generation.serving.answers import (
    error_object,
    failure_of,
    json_response,
)
from coreai_onnx.huggingface.generation.serving.metrics import CountedRequests, Metrics


class Served:
    """A model by its name, and the handlers of its routes.

    Attributes:
        name: The name that clients give the model.
        metrics: The numbers.
        max_body: The most bytes of a request.
        timeout: Seconds that a request may take.
        handlers: What answers requests, by the path after ``/v1/``.
    """

    handlers: Mapping[str, Callable[[Request], Awaitable[Response]]]

    def __init__(self, name: str, metrics: Metrics, max_body: int, timeout: float) -> None:
        """Take the limits."""
        self.name, self.metrics = name, metrics
        self.max_body, self.timeout = max_body, timeout
        self.created = int(time.time())

    async def models(self, _: Request) -> Response:
        """List the model."""
        return json_response({"object": "list", "data": [self._description()]})

    async def one_model(self, request: Request) -> Response:
        """Describe the model."""
        self.check_name(request.path_params["name"])
        return json_response(self._description())

    async def health(self, _: Request) -> Response:
        """Tell that the endpoint answers."""
        return json_response({"status": "ok"})

    async def numbers(self, _: Request) -> Response:
        """Return what Prometheus reads."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def _description(self) -> dict[str, Any]:
        owner = {"created": self.created, "owned_by": "coreai_onnx"}
        return {"id": self.name, "object": "model", **owner}

    def check_name(self, name: Any) -> None:
        """Check that a request is for this model.

        Raises:
            RequestError: If it names another one.
        """
        if name not in (None, self.name):
            what = f"there is no model {name!r:.80}; there is {self.name!r}"
            raise RequestError(what, 404, param="model", code="model_not_found")

    async def body(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            RequestError: If it is too large, or of another type.
        """
        # A page of another site may send forms and plain text, and not this.
        kind, _, _ = request.headers.get("content-type", "").partition(";")
        if kind.strip().lower() != "application/json":
            raise RequestError("the body must have the content type application/json", 415)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body:
                raise RequestError(f"the body is larger than {self.max_body} bytes", 413)
        return bytes(body)


def application(
    served: Served, origins: Sequence[str], close: Callable[[], None] = lambda: None
) -> Starlette:
    """Return an application of ASGI.

    Args:
        served: The model.
        origins: Origins whose pages may read the answers.
        close: Called in a thread when the application shuts down.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(close)

    middleware = [Middleware(CountedRequests, metrics=served.metrics)]
    if origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    return Starlette(
        routes=[
            *(
                Route(f"/v1/{path}", handler, methods=["POST"])
                for path, handler in served.handlers.items()
            ),
            Route("/v1/models", served.models),
            Route("/v1/models/{name:path}", served.one_model),
            Route("/health", served.health),
            Route("/metrics", served.numbers),
        ],
        middleware=middleware,
        exception_handlers={
            RequestError: _refusal,
            GenerationError: _failure,
            TimeoutError: _failure,
            HTTPException: _other_refusal,
            Exception: _failure,
        },
        lifespan=lifespan,
    )


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    response = json_response(error_object(error), error.status)
    if error.status == 429:
        response.headers["retry-after"] = "1"
    return response


async def _failure(request: Request, error: Exception) -> Response:
    return await _refusal(request, failure_of(error))


async def _other_refusal(request: Request, error: Exception) -> Response:
    """Return that there is no such route or method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return await _refusal(request, RequestError(what, error.status_code))
