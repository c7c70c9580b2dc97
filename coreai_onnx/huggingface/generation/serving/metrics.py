"""What an endpoint tells Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coreai_onnx.huggingface.generation.engine import Engine

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_GAUGES = ("waiting", "reading", "running", "free_blocks")


class Metrics:
    """The numbers of an endpoint, in a registry of its own.

    Attributes:
        registry: The registry.
        requests: Requests by route and status.
        seconds: How long they took, by route.
        first_token: How long answers waited for their first token.
        answers: Answers by the reason why they ended.
        prompt_tokens: Tokens of prompts.
        generated_tokens: Tokens of answers.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        """Register the numbers, with those of an engine if there is one."""
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        timer = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        self.requests = counter("coreai_onnx_requests", "Requests.", ["route", "status"])
        self.seconds = timer("coreai_onnx_request_seconds", "Seconds of requests.", ["route"])
        self.first_token = timer("coreai_onnx_first_token_seconds", "Seconds until a first token.")
        self.answers = counter("coreai_onnx_answers", "Answers.", ["finish_reason"])
        self.prompt_tokens = counter("coreai_onnx_prompt_tokens", "Tokens of prompts.")
        self.generated_tokens = counter("coreai_onnx_generated_tokens", "Tokens of answers.")
        if engine is None:
            return
        for name in _GAUGES:
            text = f"The engine's statistic {name}."
            gauge = Gauge(f"coreai_onnx_engine_{name}", text, registry=self.registry)
            gauge.set_function(partial(self._statistic, engine, name))

    @staticmethod
    def _statistic(engine: Engine, name: str) -> float:
        return engine.statistics[name]


class CountedRequests:
    """An application of ASGI whose requests are counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Count the requests of an application."""
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 499, time.monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            # At the end, uvicorn cancels what takes too long, and would log where it stood.
            with contextlib.suppress(asyncio.CancelledError):
                await self.app(scope, receive, noted)
        finally:
            # Paths that do not exist would be labels without end.
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.monotonic() - start)
