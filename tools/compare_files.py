"""Compare the files of the small models in tests/models before and after a change.

    python tools/compare_files.py --write before.json      before the change, or in its checkout
    python tools/compare_files.py --against before.json    exit 1 if a file differs, and where

Each architecture is converted for every target, and a few decoders are exported as folders. Not
compared are the lines of coreai_onnx's own modules, and the folders of source files.
``PYTHONPATH=checkout`` selects another checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import chain, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Last, so that another checkout on PYTHONPATH comes first.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import onnx.printer
import torch

import coreai_onnx
from coreai_onnx import OnnxProgram
from tests.models.zoo import ARCHITECTURES, named
from tests.support import quick_exports

TARGETS: tuple[Any, ...] = ("onnxruntime", "contrib", "kernels", "portable", "webgpu", "cuda")
NOT_RECOGNIZED = ("segformer",)  # torch cannot run it when its blocks are replaced
FOLDERS: dict[str, dict[str, Any]] = {
    "llama:folder": {},
    "gpt2:folder": {"target": "contrib", "quantization": {"bits": 4}},
    "qwen3:folder": {"target": "kernels", "cache": "static", "dtype": "float16"},
}
FAST = ("bert", "llama", "gpt_oss", "qwen3_next", "t5", "resnet", "gpt2:folder")
OWN, DEBUG = "coreai_onnx", "debug info"
SOURCE, CODE, VALUES, RELATIONS = (f"coreai.{k}" for k in ("source", "code", "values", "relations"))
IN_RELATION = r'(?<="source": ")[^"]*'

Parts = dict[str, list[str]]  # part of a file to its lines
Digests = dict[str, Any]
"""``{"files": {"bert contrib": {"bytes": …, "parts": {part: key}}}, "texts": {key: lines}}``"""


def main() -> int:
    """Write the digests, or compare with those of another run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="DIGESTS.json")
    action.add_argument("--against", type=Path, metavar="DIGESTS.json")
    parser.add_argument("--models", help="names of architectures and folders: bert,llama:folder")
    parser.add_argument("--fast", action="store_true", help=f"only {', '.join(FAST)}")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    every = [*(a.name for a in ARCHITECTURES), *FOLDERS]
    chosen = options.models.split(",") if options.models else FAST if options.fast else every
    if unknown := sorted(set(chosen) - set(every)):
        parser.error(f"no models {', '.join(unknown)}; there are {', '.join(every)}")
    print(f"{len(chosen)} models of {Path(coreai_onnx.__file__).parent}", flush=True)
    digests = computed(chosen, options.processes)
    if options.write:
        options.write.write_text(json.dumps(digests, indent=0), encoding="utf-8")
        return 0
    before = json.loads(options.against.read_text(encoding="utf-8"))
    other = set(every) - set(chosen)
    before["files"] = {k: f for k, f in before["files"].items() if k.split()[0] not in other}
    found = differences(before, digests)
    print("\n".join(found) or "every file is the same")
    return int(bool(found))


def computed(names: Sequence[str], processes: int) -> Digests:
    """Return the digests of models, which processes of their own convert."""
    versions = {name: version(name) for name in ("torch", "transformers", "onnx", "onnx_ir")}
    digests: Digests = {"versions": versions, "files": {}, "texts": {}}
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start) as pool:
        for name, files in zip(names, pool.map(_converted, names), strict=True):
            for label, (content, parts) in files.items():
                keys = {part: digest("\n".join(lines).encode()) for part, lines in parts.items()}
                digests["files"][f"{name} {label}"] = {"bytes": content, "parts": keys}
                digests["texts"].update(zip(keys.values(), parts.values(), strict=True))
            print(f"  {name}: {len(files)}", flush=True)
    return digests


def _start() -> None:
    os.chdir(Path(coreai_onnx.__file__).parent.parent)  # files name sources relative to it
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quick_exports.install()


def _converted(name: str) -> dict[str, tuple[str, Parts]]:
    quick_exports.forget_operators()
    if name in FOLDERS:
        return dict(_folder_files(name))
    return {label: file_digests(program) for label, program in programs(name)}


def programs(name: str) -> Iterator[tuple[str, OnnxProgram]]:
    """Yield the programs of an architecture: unoptimized, for each target, and with its blocks."""
    architecture = named(name)
    exported = architecture.export(architecture.module())
    for target in TARGETS:
        opset = 18 if target == "portable" else None
        program = coreai_onnx.convert(exported, optimize=False, opset_version=opset)
        if target == TARGETS[0]:
            yield "unoptimized", OnnxProgram({"main": program.model.clone()})
        yield target, program.optimize(target=target)
    if name not in NOT_RECOGNIZED:
        program = coreai_onnx.convert(
            architecture.module(),
            kwargs=architecture.arguments(*architecture.sizes[0]),
            dynamic_shapes=dict(architecture.dynamic),
            prefer_deferred_runtime_asserts_over_guards=architecture.deferred,
            externalize_modules=["auto"],
        )
        yield "recognized", program


def _folder_files(name: str) -> Iterator[tuple[str, tuple[str, Parts]]]:
    module = named(name.removesuffix(":folder")).module()
    with tempfile.TemporaryDirectory() as folder:
        done = coreai_onnx.export_model(module, Path(folder, "out"), **FOLDERS[name])
        yield from ((file, file_digests(program)) for file, program in done.programs.items())
        for path in done.files:
            if ".onnx" not in path.name:
                text = path.read_text()
                yield path.name, (digest(text.encode()), {"text": text.splitlines()})


def digest(content: bytes) -> str:
    """Return the SHA-256."""
    return hashlib.sha256(content).hexdigest()


def file_digests(program: OnnxProgram) -> tuple[str, Parts]:
    """Return the digest of the files that a program is saved as, and the lines of their parts."""
    _forget_places(program)
    with tempfile.TemporaryDirectory() as folder:
        written = program.save(Path(folder, "model.onnx"), external_data=True)
        full = Path(folder, "full.onnx")
        program.save(full, external_data=True, debug_info="full")
        return digest(b"".join(p.read_bytes() for p in written)), parts_of(onnx.load(full))


def _forget_places(program: OnnxProgram) -> None:
    """Name source files without their folder, and no lines of coreai_onnx, in place."""
    for model in program.models.values():
        entries, bodies = model.metadata_props, model.functions.values()
        for node in chain(model.graph.all_nodes(), *(body.all_nodes() for body in bodies)):
            if SOURCE in node.metadata_props:
                node.metadata_props[SOURCE] = place(node.metadata_props[SOURCE])
        code = json.loads(entries.get(CODE, "{}"))
        lines = {place(f"{file}:{n}"): text for file, of in code.items() for n, text in of.items()}
        entries[CODE] = json.dumps(lines | {f"{OWN}:0": ""}, ensure_ascii=False)
        if RELATIONS in entries:
            entries[RELATIONS] = re.sub(IN_RELATION, lambda m: place(m[0]), entries[RELATIONS])


def place(source: str) -> str:
    """Return ``moe.py:41`` for ``models/moe.py:41``, ``coreai_onnx:0`` for its own modules."""
    return f"{OWN}:0" if source.startswith(f"{OWN}/") else source.rpartition("/")[2]


def parts_of(model: onnx.ModelProto) -> Parts:
    """Return the lines of each part of a model, which is used up."""
    functions = {f"function {f.domain}::{f.name} {f.overload}".strip(): f for f in model.functions}
    bodies: dict[str, Any] = {"graph": model.graph, **functions}
    entries = {entry.key: entry.value for entry in model.metadata_props}
    debug = [f"{key} = {entries.pop(key, '')}" for key in (CODE, VALUES, RELATIONS)]
    parts = {
        "metadata": [re.sub(IN_RELATION, "", debug[-1]), *map(" = ".join, entries.items())],
        "functions": [*functions],
        "weights": [_line(f"{t.name} {list(t.dims)}", t) for t in model.graph.initializer],
    }
    model.graph.ClearField("initializer")
    for name, body in bodies.items():
        debug += [f"{name}: {line}" for line in _origins(body.node)]
        parts[name] = [_line(onnx.printer.to_text(node), node) for node in body.node]
        parts[name] += [_line(f"type of {value.name}", value) for value in body.value_info]
        body.ClearField("node")
        body.ClearField("value_info")
        ends = [[getattr(v, "name", v) for v in side] for side in (body.input, body.output)]
        parts[name].append(_line("interface: {} -> {}".format(*ends), body))
    for field in ("graph", "functions", "metadata_props"):
        model.ClearField(field)
    parts["model"] = [_line(f"ir {model.ir_version}, {model.producer_version}", model)]
    return parts | {DEBUG: debug}


def _origins(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the name and the debug information of each node, which loses the latter."""
    for node in nodes:
        yield " ".join([node.name, *(entry.value for entry in node.metadata_props)])
        node.ClearField("metadata_props")
        for attribute in node.attribute:
            yield from _origins(n for g in (attribute.g, *attribute.graphs) for n in g.node)


def _line(text: str, message: Any) -> str:
    content = message.SerializeToString(deterministic=True)
    return f"{' '.join(text.split())[:200]} #{digest(content)[:12]}"


def differences(before: Digests, after: Digests) -> list[str]:
    """Return a text for each file that differs, is new, or is gone."""
    found = []
    if before["versions"] != after["versions"]:
        found.append(f"libraries: {before['versions']} before, {after['versions']} after")
    for label in before["files"] | after["files"]:
        files = before["files"].get(label), after["files"].get(label)
        if None in files:
            found.append(f"{label}: {'is new' if files[0] is None else 'is gone'}")
        elif files[0] != files[1]:
            old, new = (_parts(label, run) for run in (before, after))
            found.append(f"{label}: {_first_difference(old, new)}")
    return found


def _parts(label: str, run: Digests) -> Parts:
    return {part: run["texts"][key] for part, key in run["files"][label]["parts"].items()}


def _first_difference(old: Parts, new: Parts) -> str:
    for part in sorted(old | new, key=lambda name: name == DEBUG):
        pairs = zip_longest(old.get(part, []), new.get(part, []), fillvalue="nothing")
        for number, (one, other) in enumerate(pairs, 1):
            if one != other:
                kind = "graph equal, debug info differs" if part == DEBUG else f"{part} differs"
                return f"{kind}\n  line {number} before: {one}\n  line {number} after:  {other}"
    return "every part is equal, but the bytes of the file differ"


if __name__ == "__main__":
    # Some models of transformers loop over sets of strings, in an order that changes by process.
    if "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606
    sys.exit(main())
