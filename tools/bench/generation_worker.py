"""One implementation of a language model, which times one step when it is asked to.

    python tools/bench/generation_worker.py '{"kind": "file", "path": "model.onnx", "threads": 1}'

A line of the standard input names a step, ``prefill`` or ``decode``; the answer is a line of JSON
with its wall time and its process CPU time in seconds. ``end`` answers the peak memory, and a line
of JSON is the arguments of `read`. This file
imports nothing of the project, so that it runs in environments that have only the implementation.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, CACHED, CAPACITY = int(os.environ.get("PROMPT", "128")), 512, 640
"""Tokens of a prefill, tokens cached before a decoded one, and the capacity of a shared cache."""

VOCABULARY, HEAD_DIM = 16000, 64
"""Sizes of the models; see generation_models.py."""
SOURCE = "transformers"
"""The folder of the model in the format of transformers."""


def tokens(count: int) -> list[int]:
    """Return the tokens that every implementation reads."""
    return [(37 * i + 11) % VOCABULARY for i in range(count)]


class File:
    """An ONNX file in onnxruntime, all inputs and outputs bound to memory beforehand.

    ``shared`` binds the new cache to the memory of the old one, of a fixed capacity; otherwise the
    cache grows from one memory into another.
    """

    def __init__(
        self,
        path: str,
        threads: int,
        library: str | None = None,
        *,
        shared: bool = False,
        op_types: str = "",
        packed_weights: str = "",
        profile: str = "",
    ) -> None:
        import onnxruntime as ort

        self._ort, self._shared = ort, shared
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        if library is not None:
            options.add_session_config_entry("coreai.huge_pages", "1")
            if op_types:  # registering all kernels takes time and memory
                options.add_session_config_entry("coreai.op_types", op_types)
            if packed_weights:
                options.add_session_config_entry("coreai.packed_weights", packed_weights)
            options.register_custom_ops_library(library)
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.opened = time.perf_counter()
        self._inputs = {i.name: i.shape for i in self._session.get_inputs()}
        self._optional = {i.name for i in self._session.get_overridable_initializers()}
        self._steps = {"prefill": self._bound(PROMPT, 0, {})}
        self._session.run_with_iobinding(self._steps["prefill"][0])
        binding, cache = self._bound(CACHED, 0, {})
        self._session.run_with_iobinding(binding)
        self._steps["decode"] = self._bound(1, CACHED, cache)

    def _bound(self, count: int, past: int, cache: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Bind a step; return the binding and the cache after it by the names of its inputs."""
        value = self._ort.OrtValue.ortvalue_from_numpy
        ids = tokens(past + count)[past:]
        given = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, past + count), np.int64),
            "position_ids": np.arange(past, past + count)[None],
            "num_logits_to_keep": np.array(1),
        }
        known = {*self._inputs, *self._optional}
        binding, after = self._session.io_binding(), {}
        for name, array in given.items():
            if name in known:
                binding.bind_ortvalue_input(name, value(array))
        for name, declared in self._inputs.items():
            if name.startswith("past_key_values."):
                length = CAPACITY if self._shared else past
                shape = [1, declared[1], length, declared[3]]
                before = cache.get(name) or value(np.zeros(shape, np.float32))
                binding.bind_ortvalue_input(name, before)
                shape[2] = CAPACITY if self._shared else past + count
                after[name] = before if self._shared else value(np.zeros(shape, np.float32))
                output = name.replace("past_key_values", "present")
                binding.bind_ortvalue_output(output, after[name])
        binding.bind_output("logits")
        return binding, after

    def step(self, name: str) -> None:
        """Run a step."""
        self._session.run_with_iobinding(self._steps[name][0])

    def logits(self, name: str) -> Any:
        """Return the logits of the last token."""
        return self._steps[name][0].get_outputs()[-1].numpy()[0, -1]

    def end_profiling(self) -> str:
        """Return the path of the profile that ``profile`` is the beginning of."""
        path: str = self._session.end_profiling()
        return path


class Torch:
    """transformers with its growing cache, or compiled by inductor with its static cache."""

    def __init__(self, path: str, threads: int, *, compiled: bool = False) -> None:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch, self._compiled = torch, compiled
        self._model = AutoModelForCausalLM.from_pretrained(path).eval()
        self._call = torch.compile(self._model.forward) if compiled else self._model.forward

        def new() -> Any:
            if compiled:
                return StaticCache(config=self._model.config, max_cache_len=CAPACITY)
            return DynamicCache(config=self._model.config)

        self._new, self._caches = new, {"prefill": new(), "decode": new()}
        self._count = {"prefill": 0, "decode": CACHED}
        self._read("decode", tokens(CACHED))
        self.step("prefill")
        self.step("decode")

    def _read(self, name: str, ids: list[int]) -> None:
        past = self._caches[name].get_seq_length()
        place = self._torch.arange(int(past), int(past) + len(ids))
        self._result = self._call(
            input_ids=self._torch.tensor([ids]),
            position_ids=place[None],
            past_key_values=self._caches[name],
            use_cache=True,
            logits_to_keep=1,
        )

    def before(self, name: str) -> None:
        """Restore the cache; this is not timed."""
        cache = self._caches[name]
        if not self._compiled:
            self._caches[name] = self._new() if name == "prefill" else cache
            if name == "decode" and cache.get_seq_length() > CACHED:
                cache.crop(-1)
        elif name == "prefill":
            cache.reset()
        else:
            for layer in cache.layers:
                layer.cumulative_length.fill_(CACHED)

    def step(self, name: str) -> None:
        """Run a step."""
        self._read(name, tokens(PROMPT) if name == "prefill" else tokens(CACHED + 1)[CACHED:])

    def logits(self, name: str) -> Any:
        """Return the logits of the last token."""
        del name
        return self._result.logits[0, -1].numpy()


class LlamaCpp:
    """A GGUF file in llama.cpp."""

    def __init__(self, path: str, threads: int) -> None:
        self._options: dict[str, Any] = {"model_path": path, "n_ctx": 1024, "n_batch": 512}
        self._options |= {"n_threads": threads, "n_threads_batch": threads, "verbose": False}
        self._model = self._open()
        self._filled = 0

    def _open(self, **options: Any) -> Any:
        from llama_cpp import Llama

        float32 = 0  # of ggml's types; the default for the cache is float16
        return Llama(**self._options, type_k=float32, type_v=float32, **options)

    def before(self, name: str) -> None:
        """Restore the cache; this is not timed."""
        wanted = 0 if name == "prefill" else CACHED
        if wanted > self._filled or wanted == 0:
            self._model.reset()
            self._model._ctx.kv_cache_clear()
            if wanted:
                self._model.eval(tokens(wanted))
        else:
            self._model._ctx.kv_cache_seq_rm(-1, wanted, -1)
            self._model.n_tokens = wanted
        self._filled = wanted

    def step(self, name: str) -> None:
        """Run a step."""
        ids = tokens(PROMPT) if name == "prefill" else tokens(CACHED + 1)[CACHED:]
        self._model.eval(ids)
        self._filled += len(ids)

    def logits(self, name: str) -> Any:
        """Return the logits of the last token."""
        del name
        found = self._model._ctx.get_logits()
        return np.ctypeslib.as_array(found, shape=(self._model.n_vocab(),)).copy()

    def read(self, prompt: str, text: str, count: int) -> dict[str, Any]:
        """Continue a prompt with the likeliest tokens, and predict those of a text."""
        model = self._open(logits_all=True)
        ids = model.tokenize(text.encode())
        model.eval(ids)
        losses = negative_log_likelihoods(model.scores[: len(ids)], ids)
        model.reset()
        made = model.create_completion(prompt, max_tokens=count, temperature=0.0)
        return {"continued": made["choices"][0]["text"], "losses": losses}


class Genai:
    """An exported folder in onnxruntime-genai."""

    def __init__(self, path: str, threads: int) -> None:
        import onnxruntime_genai as genai

        self._genai = genai
        config = genai.Config(path)
        session = {"intra_op_num_threads": threads, "log_severity_level": 3}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = genai.Model(config)
        self.opened = time.perf_counter()
        self._generators = {name: self._generator(CAPACITY) for name in ("prefill", "decode")}
        self._generators["decode"].append_tokens(np.array(tokens(CACHED), np.int32))
        self._counts = {"prefill": 0, "decode": CACHED}

    def _generator(self, length: int) -> Any:
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=length, do_sample=False)
        return self._genai.Generator(self._model, parameters)

    def before(self, name: str) -> None:
        """Restore the cache; this is not timed."""
        if self._generators[name].token_count() > self._counts[name]:
            self._generators[name].rewind_to(self._counts[name])

    def step(self, name: str) -> None:
        """Run a step."""
        ids = tokens(PROMPT) if name == "prefill" else tokens(CACHED + 1)[CACHED:]
        self._generators[name].append_tokens(np.array(ids, np.int32))

    def logits(self, name: str) -> Any:
        """Return the logits of the last token."""
        return self._generators[name].get_logits().reshape(-1)

    def read(self, prompt: str, text: str, count: int) -> dict[str, Any]:
        """Continue a prompt with the likeliest tokens, and predict those of a text."""
        tokenizer = self._genai.Tokenizer(self._model)
        ids = tokenizer.encode(text)
        generator = self._generator(len(ids) + CAPACITY)  # a window of keys must fit
        generator.append_tokens(ids)
        losses = negative_log_likelihoods(generator.get_output("logits")[0], ids)
        ids = tokenizer.encode(prompt)
        generator = self._generator(len(ids) + CAPACITY)
        generator.append_tokens(ids)
        for _ in range(count):
            generator.generate_next_token()
        made = tokenizer.decode(generator.get_sequence(0)[len(ids) :])
        return {"continued": made, "losses": losses}


def negative_log_likelihoods(logits: Any, ids: Any) -> list[float]:
    """Return what each token costs after those before it."""
    rows = np.asarray(logits, np.float64)[: len(ids) - 1]
    rows -= rows.max(1, keepdims=True)
    sums = np.log(np.exp(rows).sum(1))
    return [float(x) for x in sums - rows[np.arange(len(rows)), np.asarray(ids)[1:]]]


class OpenVino:
    """An ONNX file with growing caches in OpenVINO, its weights compressed to 4 bits by NNCF."""

    def __init__(self, path: str, threads: int) -> None:
        import nncf
        import openvino

        mode = nncf.CompressWeightsMode.INT4_SYM
        model = nncf.compress_weights(
            openvino.Core().read_model(path), mode=mode, group_size=32, ratio=1.0, all_layers=True
        )
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(
            model, "CPU", {**settings, "PERFORMANCE_HINT": "LATENCY"}
        )
        self._tensor = openvino.Tensor
        self._inputs = {i.any_name: i.partial_shape for i in compiled.inputs}
        self._requests = {name: compiled.create_infer_request() for name in ("prefill", "decode")}
        self._bind("prefill", PROMPT, 0, {})
        self._requests["prefill"].infer()
        self._bind("decode", CACHED, 0, {})
        request = self._requests["decode"]
        request.infer()
        names = [name for name in self._inputs if name.startswith("past_key_values.")]
        cache = {
            name: request.get_tensor(name.replace("past_key_values", "present")).data.copy()
            for name in names
        }
        self._bind("decode", 1, CACHED, cache)

    def _bind(self, name: str, count: int, past: int, cache: dict[str, Any]) -> None:
        given = {
            "input_ids": np.array([tokens(past + count)[past:]]),
            "attention_mask": np.ones((1, past + count), np.int64),
            "position_ids": np.arange(past, past + count)[None],
        }
        for key, declared in self._inputs.items():
            array = given.get(key)
            if array is None:
                shape = [1, declared[1].get_length(), past, HEAD_DIM]
                array = cache.get(key, np.zeros(shape, np.float32))
            self._requests[name].set_tensor(key, self._tensor(array))

    def step(self, name: str) -> None:
        """Run a step."""
        self._requests[name].infer()

    def logits(self, name: str) -> Any:
        """Return the logits of the last token."""
        return self._requests[name].get_tensor("logits").data[0, -1]


def peak_memory() -> int:
    """Return the most memory that was resident, in KiB."""
    # getrusage has that of the parent as well, before this process replaced its copy.
    if (status := Path("/proc/self/status")).exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


KINDS = {"file": File, "torch": Torch, "llama.cpp": LlamaCpp, "genai": Genai, "openvino": OpenVino}


def main() -> None:
    """Open the implementation, and answer until the input ends."""
    given = json.loads(sys.argv[1])
    kind = KINDS[given.pop("kind")]
    begin = time.perf_counter()
    model = kind(**given)
    # Before the steps that some of them run once.
    answer = {"seconds": getattr(model, "opened", time.perf_counter()) - begin}
    print(json.dumps(answer), flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name == "end":
            print(json.dumps({"peak_mib": peak_memory() / 1024}), flush=True)
            return
        if name.startswith("{"):
            print(json.dumps(model.read(**json.loads(name))), flush=True)
            continue
        if hasattr(model, "before"):
            model.before(name)
        wall, cpu = time.perf_counter(), time.process_time()
        model.step(name)
        answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        logits = np.asarray(model.logits(name))
        answer["logits"] = [float(x) for x in logits[:: len(logits) // 16]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
