"""OpenAI's completions and chats by HTTP, with an engine behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from coreai_onnx.errors import GenerationError, QueueFullError, RequestError, failures_as
from coreai_onnx.huggingface.generation.engine import Engine, Settings
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.replies import Reply, StoppedText
from coreai_onnx.huggingface.generation.serving.answers import Answer, Events, Form, unless_gone
from coreai_onnx.huggingface.generation.serving.application import Served, application
from coreai_onnx.huggingface.generation.serving.fields import (
    Asked,
    read_chat,
    read_completion,
    read_object,
)
from coreai_onnx.huggingface.generation.serving.grammars import Grammar, Grammars
from coreai_onnx.huggingface.generation.serving.metrics import Metrics
from coreai_onnx.huggingface.generation.serving.tool_calls import CalledTools
from coreai_onnx.huggingface.generation.streamed_text import StreamedText

_CHAT_TOKENS = 1024
"""New tokens of an answer in a chat by default, at most."""


def endpoint(
    model: LanguageModel,
    name: str,
    *,
    max_body: int = 1 << 20,
    max_prompt: int | None = None,
    timeout: float = 300,
    allow_origins: Sequence[str] = (),
    **settings: Unpack[Settings],
) -> Starlette:
    """Return an application of ASGI that answers OpenAI's requests.

    ```python
    app = endpoint(LanguageModel.open("my_llama_paged"), "my_llama", slots=16)
    uvicorn.run(app)
    ```

    Its engine is ``app.state.engine``; it is closed when the application shuts down.

    Args:
        model: A `LanguageModel` that was exported with ``cache="paged"``, with a tokenizer.
        name: The name that clients give the model.
        max_body: The most bytes of a request.
        max_prompt: The most tokens of a prompt; None takes those that fit the cache.
        timeout: Seconds that a request may take, with those that it waits.
        allow_origins: Origins whose pages may read the answers, such as
            ``"http://localhost:3000"``; ``"*"`` for all.
        **settings: Settings of the engine, as of `Engine`.

    Raises:
        GenerationError: If the model has another cache or no tokenizer, or a setting is not valid.
    """
    if model.tokenizer is None:
        raise GenerationError("an endpoint needs a tokenizer in the folder of the model")
    served = _Conversations(model, model.engine(**settings), name, max_body, max_prompt, timeout)

    # Closing waits for the step that is computed.
    app = application(served, allow_origins, served.engine.close)
    app.state.engine = served.engine
    return app


class _Conversations(Served):
    """A language model with its engine, and the handlers of its routes."""

    def __init__(
        self,
        model: LanguageModel,
        engine: Engine,
        name: str,
        max_body: int,
        max_prompt: int | None,
        timeout: float,
    ) -> None:
        super().__init__(name, Metrics(engine), max_body, timeout)
        self.model, self.engine, self.grammars = model, engine, Grammars(model)
        self.max_prompt = min(max_prompt or engine.longest, engine.longest - 1)
        self.handlers = {"completions": self.completions, "chat/completions": self.chat}

    # ------------------------------------------------------------------ routes
    async def completions(self, request: Request) -> Response:
        return await self._answered(request, read_completion, is_chat=False)

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, read_chat, is_chat=True)

    # ------------------------------------------------------------------ answers
    async def _answered(
        self, request: Request, read: Callable[[dict[str, Any]], Asked], *, is_chat: bool
    ) -> Response:
        deadline = asyncio.get_running_loop().time() + self.timeout
        async with asyncio.timeout_at(deadline):
            content = read_object(await self.body(request))
            asked = read(content)
            self.check_name(content.get("model"))
            prompts = await asyncio.to_thread(self._prompts, asked, is_chat=is_chat)
            replies = await asyncio.to_thread(self._submit, asked, prompts)
        read_tokens = sum(map(len, prompts))
        self.metrics.prompt_tokens.inc(read_tokens)
        answers = [self._answer(reply, asked, deadline) for reply in replies]
        form = Form(self.name, answers, read_tokens, is_chat, self.model.tokenizer.decode)
        if asked.is_streamed:
            return Events(form, form.events(counts_tokens=asked.counts_tokens))
        return await unless_gone(request, form)

    def _answer(self, reply: Reply, asked: Asked, deadline: float) -> Answer:
        text = StoppedText(StreamedText(self.model.text), tuple(asked.stops))
        names = frozenset(tool["function"]["name"] for tool in asked.tools or ())
        return Answer(reply, text, deadline, self.metrics, CalledTools(names) if names else None)

    def _prompts(self, asked: Asked, *, is_chat: bool) -> list[list[int]]:
        """Return the tokens of the prompts."""
        tokenizer, size = self.model.tokenizer, self.model.session.outputs[0].dims[-1]
        prompts = []
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                with failures_as(RequestError, "the prompt is not valid text"):
                    tokens = tokenizer(prompt)["input_ids"]
            elif is_chat:
                # The template writes the special tokens.
                text = self._chat_text(prompt, asked.tools)
                with failures_as(RequestError, "the messages are not valid text"):
                    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            else:
                tokens = prompt
            if isinstance(size, int) and not all(0 <= token < size for token in tokens):
                raise RequestError(f"token ids must be from 0 to {size - 1}", param="prompt")
            if (count := len(tokens)) > self.max_prompt:
                raise RequestError(
                    f"the prompt has {count} tokens, and there is place for {self.max_prompt}",
                    param="messages" if is_chat else "prompt",
                    code="context_length_exceeded",
                )
            prompts.append(tokens)
        return prompts

    def _chat_text(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> str:
        tokenizer = self.model.tokenizer
        if not tokenizer.chat_template:
            raise RequestError("the tokenizer of the model has no chat template: use completions")
        with failures_as(RequestError, "the chat template refuses the messages"):
            if tools and "tools" not in tokenizer.get_chat_template(None, tools):
                raise RequestError("the chat template of the model takes no tools", param="tools")
            return str(
                tokenizer.apply_chat_template(
                    messages, tools=tools, add_generation_prompt=True, tokenize=False
                )
            )

    def _grammar(self, asked: Asked) -> Grammar | None:
        """Return what all answers keep to, compiled once."""
        if asked.called:
            return self.grammars.of_calls(asked.called)
        return self.grammars.of_form(asked.form) if asked.form else None

    def _submit(self, asked: Asked, prompts: Sequence[list[int]]) -> list[Reply]:
        replies, longest, grammar = [], self.engine.longest, self._grammar(asked)
        for tokens in prompts:
            most = asked.max_tokens or min(longest - len(tokens), _CHAT_TOKENS)
            if len(tokens) + most > longest:
                raise RequestError(
                    f"the prompt has {len(tokens)} tokens, and with {most} new ones there is no "
                    f"place: the cache holds {longest}",
                    param="max_tokens",
                    code="context_length_exceeded",
                )
            for choice in range(asked.count):
                options = {**asked.of_choice(choice), "max_new_tokens": most}
                if grammar is not None:
                    options["logits_processor"] = [grammar.processor()]
                try:
                    # Those before are cancelled with their replies.
                    replies.append(
                        self.engine.submit(tokens, top_logprobs=asked.top_logprobs, **options)
                    )
                except QueueFullError as error:
                    limit = "rate_limit_error", None, "rate_limit_exceeded"
                    raise RequestError(str(error), 429, *limit) from error
                except GenerationError as error:
                    raise RequestError(str(error)) from error
        return replies
