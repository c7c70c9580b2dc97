"""Wrong values of every option and argument of every command."""

from __future__ import annotations

RIGHT = {
    "convert": ("convert", "FACTORY", "-o", "out.onnx"),
    "export": ("export", "SOURCE", "-o", "out"),
    "serve": ("serve", "SOURCE", "--port", "0"),
    "perplexity": ("perplexity", "SOURCE", "TEXT"),
    "optimize": ("optimize", "MODEL", "-o", "out.onnx"),
    "quantize": ("quantize", "MODEL", "-o", "out.onnx", "--minimum-size", "0", "--group-size", "0"),
    "convert-dtype": ("convert-dtype", "MODEL", "-o", "out.onnx"),
    "run": ("run", "MODEL"),
    "map": ("map", "MODEL", "ROWS", "-o", "out.parquet"),
    "package": ("package", "MODEL", "--for", "triton", "-o", "package"),
    "compare": ("compare", "MODEL", "FACTORY"),
    "blame": ("blame", "MODEL", "RECORD"),
    "profile": ("profile", "MODEL"),
    "annotate": ("annotate", "MODEL"),
    "memory": ("memory", "MODEL"),
    "verify-determinism": ("verify-determinism", "MODEL"),
    "extract": ("extract", "MODEL", "MODULE", "-o", "out.onnx"),
    "inspect": ("inspect", "MODEL"),
    "diff": ("diff", "MODEL", "MODEL"),
    "to-python": ("to-python", "MODEL", "-o", "package"),
    "to-gguf": ("to-gguf", "SOURCE", "-o", "out.gguf"),
    "view": ("view", "MODEL", "--no-browser"),
    "required-ops": ("required-ops", "MODEL"),
    "ops-path": ("ops-path",),
}
"""Words that work, of every command."""

_MODELS = ["nowhere.onnx", ".", "", "models.py", "program.pt2"]
_FACTORIES = [
    *("models", "models:", ":one", "", "nowhere:one", "models:nothing_there", "no/such.py:one"),
    *("models.py:number", "models.py:text", "models.py:none", "models.py:failing"),
    *("models.py:leaving", "models.py:five", "models.py:wrong_args", "models.py:wrong_kwargs"),
    *("nowhere.pt2", "broken.pt2", "archive.pt2", "model.onnx", "syntax.py:one", "leaves.py:one"),
]
_OUTPUTS = ["no/such/folder/m.onnx", ".", "", "out.txt", "model.v2"]
_PASSES = ["nonsense", "", ",", "models:nothing_there", "models.py:text", "math:pi", "a:b:c"]
_VERSIONS = ["old", "", "1", "-1.20", "0.1", "1.x"]
_SEEDS = ["many", "-1", str(2**32), "1.5", ""]

_SHARED = {
    "output": [["--output", value] for value in _OUTPUTS],
    "target": [["--target", value] for value in ("tpu", "")],
    "minimum_onnxruntime": [["--minimum-onnxruntime", value] for value in _VERSIONS],
    "passes": [["--passes", value] for value in _PASSES],
    "near_misses": [["--near-misses=yes"]],
    "deterministic": [["--deterministic=yes"], ["--deterministic"]],
    "float32_tiles": [["--float32-tiles=yes"], ["--float32-tiles"]],
    "debug_info": [["--debug-info", value] for value in ("some", "")],
    "external_data": [["--external-data=yes"], ["--external-data", "--no-external-data=x"]],
    "debug": [["--debug=yes"]],
}

_QUANTIZATION = {
    "bits": [["--bits", value] for value in ("5", "0", "-4", "many", "")],
    "group_size": [["--group-size", value] for value in ("-1", "many", "")],
    "method": [["--method", value] for value in ("best", "", "gptq", "awq")],
    "symmetric": [["--symmetric=yes"]],
    "activations": [["--activations"], ["--activations=yes"]],
    "activation_bits": [["--activation-bits", value] for value in ("4", "all", "")],
    "scale_dtype": [["--scale-dtype", value] for value in ("int8", "")],
    "calibration": [
        ["--method", "gptq", "--calibration", value]
        for value in ("nowhere", ".", "text.npy", "archive.npy", "models.py", "")
    ],
    "evaluation": [
        ["--evaluation", value]
        for value in ("nowhere", ".", "text.npy", "archive.npy", "models.py", "")
    ],
    "rule": [["--rule", value] for value in ("*", "*=", "=4", "*=4:", "*=5", "nothing=4", "")],
    "skip": [["--skip", value] for value in ("*", "nothing", "")],
    "embeddings": [["--embeddings=yes"]],
    "convolutions": [["--convolutions=yes"]],
    "minimum_size": [["--minimum-size", value] for value in ("-1", "many", "9999", "")],
    "calibration_method": [
        ["--activations", "--calibration", "calls", "--calibration-method", value]
        for value in ("largest", "")
    ],
    "percentile": [["--percentile", value] for value in ("101", "50", "nan", "many", "")],
    "workers": [["--workers", value] for value in ("0", "-1", "1025", "many", "1.5", "")],
    "layers": [["--layers=yes"]],
}
_WITH_BITS = {
    name: [["--minimum-size", "0", "--bits", "8", *wrong] for wrong in rows]
    for name, rows in _QUANTIZATION.items()
}
"""For commands that quantize only with ``--bits``."""

_RUNS: dict[str, list[list[str]]] = {
    "input": [
        ["--input", value]
        for value in (
            *("z=random", "x", "=x", "x=", "", "x=nonsense", "x=float64[2,8]", "x=float32[2]"),
            *(
                "x=nowhere.npy",
                "x=broken.npy",
                "x=text.npy",
                "x=archive.npy",
                "x=complex64[2,8]",
            ),
            *("x=float32[2,9]", "x=float32[99999999999999]", "x=string[2]"),
        )
    ],
    "dim": [
        ["--dim", value]
        for value in ("foo=3", "batch", "batch=", "batch=many", "batch=-1", "batch=1.5", "")
    ],
    "kernels": [["--kernels=yes"], ["--no-kernels=x"]],
    "threads": [["--threads", value] for value in ("0", "-1", "1025", "many", "1.5", "")],
    "seed": [["--seed", value] for value in _SEEDS],
}
"""For commands that run a file."""
_PROVIDERS: dict[str, list[list[str]]] = {
    "provider": [["--provider", value] for value in ("tpu", "", "QNNExecutionProvider")],
    "provider_option": [
        *(["--provider", "cpu", "--provider-option", value] for value in ("x", "=1", "")),
        ["--provider", "cpu", "--provider-option", "use_arenas=0"],
        ["--provider-option", "use_arena=0"],
    ],
}
_EXECUTIONS = {"kernels": _RUNS["kernels"], **_PROVIDERS}
_MEASURED: dict[str, list[list[str]]] = {
    **_RUNS,
    "model": [["MODEL", value] for value in _MODELS],
    "record": [["nowhere.pt2"], ["broken.pt2"], ["."], ["program.pt2", "--dim", "batch=2"]],
    **_PROVIDERS,
    "runs": [["--runs", value] for value in ("0", "-1", "many", "1.5", "")],
    "debug": [["--debug=yes"]],
}
_PAGES = [["--html", value] for value in ("no/such/folder/p.html", ".", "out.txt", "model.v2")]

WRONG: dict[str, dict[str, list[list[str]]]] = {
    "convert": {
        **_SHARED,
        **_WITH_BITS,
        "factory": [["FACTORY", value] for value in _FACTORIES],
        "opset": [["--opset", value] for value in ("7", "99", "-1", "new", "")],
        "dynamic": [
            ["--dynamic", value]
            for value in (
                *("x:7=batch", "x:0=batch[5..3]", "x:0=batch[..1]", "x:0=batch[4..4]"),
                *("x:0=batch[3..8]", "x:0=batch[0..1]", "z:0=batch", "x", "x:", ":0=n", "x:0"),
                *("x:0=2n", "x:-1=n", "x:0=n,0=m", "y:0=n", "", "x:0=n[a..b]", "x:1=n[99..]"),
            )
        ],
        "input": [
            ["--input", value]
            for value in (
                *("z=float32[2]", "x=float32[2,8]", "x", "=x", "x=", "y=nonsense", "y=float99[2]"),
                *("y=float32[a]", "y=float32[-1]", "y=nowhere.npy", "y=broken.npy", "y=text.npy"),
                *("y=float32[99999999999999]", "y=float32[99999999999999999999]", "y=object[2]"),
                *("y=archive.npy", "y=float128[2]", "y=float32[" + "1," * 70 + "1]", ""),
            )
        ],
        "externalize": [
            ["--externalize", value]
            for value in (
                *("Block", "models:nothing_there", "nowhere:Block", "math:pi", "models.py:one"),
                *("models.py:Plain", "", "=name", "models.py:Net=", "models.py:Net=a b"),
            )
        ],
        "record": [["--record", value] for value in ("no/such/m.pt2", ".", "", "m.onnx", "m.v2")],
        "no_optimize": [["--no-optimize=yes"]],
        "seed": [["--seed", value] for value in _SEEDS],
    },
    "quantize": {
        **{name: _SHARED[name] for name in ("output", "target", "debug_info", "external_data")},
        "debug": _SHARED["debug"],
        "model": [["MODEL", value] for value in _MODELS],
        **_QUANTIZATION,
        "perplexity": [["--perplexity", value] for value in ("nowhere", "", ".", "models.py")],
    },
    "convert-dtype": {
        **{name: _SHARED[name] for name in ("output", "debug_info", "external_data", "debug")},
        "model": [["MODEL", value] for value in _MODELS],
        "dtype": [["--dtype", value] for value in ("int8", "half", "")],
        "keep_io": [["--keep-io=yes"]],
        "keep": [["--keep", value] for value in ("nothing", "")],
        "calibration": [
            ["--calibration", value]
            for value in ("nowhere", ".", "text.npy", "archive.npy", "models.py", "")
        ],
    },
    "export": {
        **_WITH_BITS,
        "source": [["SOURCE", value] for value in ("nowhere", "", ".", "models.py", "model.onnx")],
        "output": [["--output", value] for value in ("no/such/folder/m", ".", "", "models.py")],
        "task": [["--task", value] for value in ("chess", "", "question answering")],
        "no_check": [["--no-check=yes"]],
        "include_kernels": [["--include-kernels=yes"]],
        "overwrite": [["--overwrite=yes"]],
        "cache": [["--cache", value] for value in ("paged", "", "static")],
        "cache_bits": [["--cache-bits", value] for value in ("", "5", "x", "-8", "4.0")],
        "include": [
            ["--include", value] for value in ("tokens", "", "tokenizer", "nms", "cross_attentions")
        ],
        "lora": [["--lora", value] for value in ("k", "")],
        "padding": [["--padding", value] for value in ("right", "")],
        "dtype": [["--dtype", value] for value in ("int3", "")],
        "weights_dtype": [["--weights-dtype", value] for value in ("int3", "")],
        "opset": [["--opset", value] for value in ("7", "99", "-1", "new", "")],
        "seed": [["--seed", value] for value in _SEEDS],
        **{n: _SHARED[n] for n in ("target", "minimum_onnxruntime", "external_data", "debug")},
    },
    "serve": {
        "folder": [["SOURCE", value] for value in ("nowhere", "", ".", "models.py", "model.onnx")],
        "host": [["--host", value] for value in ("256.1.1.1", "no where", "::x", "1.2.3.4:80")],
        "port": [["--port", value] for value in ("-1", "65536", "http", "")],
        "allow_origin": [["--allow-origin", x] for x in ("local", "http://a/b", "http://*", "")],
        "name": [["--name"]],
        **{
            name: [[f"--{name.replace('_', '-')}", value] for value in ("0", "-1", "many", "")]
            for name in ("slots", "tokens", "chunk", "prompts", "queue", "max_body", "max_prompt")
        },
        "timeout": [["--timeout", value] for value in ("0", "-1", "nan", "86401", "")],
        "grace": [["--grace", value] for value in ("0", "-1", "nan", "86401", "")],
        "threads": _RUNS["threads"],
        "packed_weights": [["--packed-weights", value] for value in ("no/folder/w", ".")],
        **_EXECUTIONS,
        "debug": [["--debug=yes"]],
    },
    "perplexity": {
        "folder": [["SOURCE", value] for value in ("nowhere", "", ".", "models.py", "model.onnx")],
        "text": [["TEXT", value] for value in ("nowhere", "", ".", "broken.npy")],
        "window": [["--window", value] for value in ("1", "-1", "many", "1.5", "")],
        "stride": [["--stride", value] for value in ("0", "-1", "many", "1.5", "")],
        **_EXECUTIONS,
        "debug": [["--debug=yes"]],
    },
    "optimize": {
        **_SHARED,
        "model": [["MODEL", value] for value in _MODELS],
        "verify": [["--verify", value] for value in ("nowhere.pt2", "broken.pt2", ".", "")],
    },
    "run": {
        "model": [["MODEL", value] for value in _MODELS],
        **_RUNS,
        **_PROVIDERS,
        "library": [["--library", value] for value in ("nowhere.so", ".", "", "text.npy")],
        "timeout": [["--timeout", value] for value in ("0", "-1", "nan", "inf", "many", "")],
        "save": [["--save", v] for v in ("no/such/folder/m.npz", ".", "", "out.txt", "/dev/full")],
        "debug": [["--debug=yes"]],
    },
    "map": {
        # A folder stands for the model.onnx in it.
        "model": [["MODEL", value] for value in _MODELS if value not in (".", "")],
        "source": [["ROWS", value] for value in ("nowhere.parquet", ".", "", "models.py")],
        "output": [["--output", value] for value in ("no/such/folder/m.parquet", ".", "", "a.txt")],
        "input": [["--input", value] for value in ("", "=x", "x=", "z=x", "x=nothing", "x=text")],
        "result": [["--result", value] for value in ("", "=y", "y=", "nothing", "y=x")],
        "keep": [["--keep", value] for value in ("", "nothing")],
        "batch_size": [["--batch-size", value] for value in ("0", "-1", "many", "1.5", "")],
        "part_size": [["--part-size", value] for value in ("0", "-1", "many", "1.5", "")],
        "workers": [["--workers", value] for value in ("0", "-1", "1025", "many", "1.5", "")],
        "ray": [["--ray", value] for value in ("nowhere:1",)],
        "on_error": [["--on-error", value] for value in ("skip", "")],
        "deterministic": [["--deterministic=yes"]],
        "kernels": _RUNS["kernels"],
        "threads": _RUNS["threads"],
        **_PROVIDERS,
        "debug": [["--debug=yes"]],
    },
    "package": {
        "model": [["MODEL", value] for value in _MODELS if value not in (".", "")],
        "reader": [["--for", value] for value in ("torchserve", "")],
        "output": [["--output", value] for value in ("no/such/folder/p", ".", "", "models.py")],
        "name": [["--name", value] for value in ("a/b", "..", "")],
        "batch_size": [["--batch-size", value] for value in ("0", "-1", "many", "1.5", "")],
        "served_from": [["--served-from", value] for value in ("models", "")],
        "variant": [["--variant", value] for value in ("tpu", "", "stock")],
        "kernels": _RUNS["kernels"],
        "threads": _RUNS["threads"],
        **_PROVIDERS,
        "debug": [["--debug=yes"]],
    },
    "compare": {
        "html": _PAGES,
        "model": [["MODEL", value] for value in _MODELS],
        "factory": [
            ["FACTORY", value]
            for value in (*_FACTORIES, "models.py:other_args")
            if value != "model.onnx"  # a reference, too
        ],
        "rtol": [["--rtol", value] for value in ("-1", "nan", "inf", "small", "")],
        "atol": [["--atol", value] for value in ("-1", "nan", "inf", "small", "")],
        "values": [["--values=yes"]],
        "runtime": [["--runtime", value] for value in ("no/python", ".", "models.py", "")],
        **_EXECUTIONS,
        "seed": [["--seed", value] for value in _SEEDS],
        "debug": [["--debug=yes"]],
    },
    "blame": {
        "model": [["MODEL", value] for value in _MODELS],
        "record": [["RECORD", value] for value in ("nowhere.pt2", "broken.pt2", ".", "")],
        **_EXECUTIONS,
        "reproduce": [["--reproduce"]],
        "html": _PAGES,
        "debug": [["--debug=yes"]],
    },
    "memory": {
        **{name: words for name, words in _RUNS.items() if name != "threads"},
        **_PROVIDERS,
        "model": [["MODEL", value] for value in _MODELS],
        "entrypoint": [["--entrypoint", value] for value in ("nothing", "")],
        "low_memory": [["--low-memory=yes"]],
        "reorder": [["--reorder", value] for value in _OUTPUTS],
        "debug": [["--debug=yes"]],
    },
    "verify-determinism": {
        **{name: words for name, words in _RUNS.items() if name not in ("threads", "runs")},
        "model": [["MODEL", value] for value in _MODELS],
        "kernels": [["--kernels", "--no-kernels=x"], ["--deterministic", "--no-kernels"]],
        "deterministic": [["--deterministic=yes"]],
        "axis": [["--axis", value] for value in ("rows", "")],
        "batch": [["--batch", "nothing"]],
        "sequence": [["--sequence", "nothing"]],
        "debug": [["--debug=yes"]],
    },
    "profile": {
        **_MEASURED,
        "by": [["--by", value] for value in ("color", "")],
        "limit": [["--limit", value] for value in ("-1", "all", "1.5", "")],
        "html": _PAGES,
        "overlay": [["--overlay", value] for value in ("no/such/o.json", ".", "out.txt", "m.v2")],
    },
    "annotate": {**_MEASURED, "source": [["--source"]]},
    "extract": {
        **{name: _SHARED[name] for name in ("output", "debug_info", "external_data", "debug")},
        "model": [["MODEL", value] for value in _MODELS],
        "module": [["MODULE", value] for value in ("nowhere", "layers.", ".")],
    },
    "inspect": {
        "nodes": [["--nodes=yes"]],
        **_PROVIDERS,
        "model": [["MODEL", value] for value in _MODELS],
        "histogram": [["--histogram", value] for value in ("nowhere.onnx", ".", "models.py")],
        "debug": [["--debug=yes"]],
    },
    "diff": {
        "before": [["MODEL", value] for value in _MODELS],
        "after": [["MODEL", value] for value in _MODELS],
        "structure": [["--structure=yes"]],
        "limit": [["--limit", value] for value in ("-1", "all", "1.5", "")],
        "output": [["--output", value] for value in ("d.pdf", "d", "", ".", "no/such/d.txt")],
        "debug": [["--debug=yes"]],
    },
    "view": {
        "model": [["MODEL", value] for value in _MODELS],
        "port": [["--port", value] for value in ("-1", "65536", "http", "")],
        "no_browser": [["--no-browser=yes"]],
        "debug": [["--debug=yes"]],
    },
    "to-python": {
        "model": [["MODEL", value] for value in _MODELS],
        "output": [["--output", value] for value in ("my-package", "no/such/folder", ".", "", "1")],
        "debug": [["--debug=yes"]],
    },
    "to-gguf": {
        "source": [["SOURCE", value] for value in ("nowhere", "", ".", "models.py", "model.onnx")],
        "output": [["--output", value] for value in ("no/such/m.gguf", ".", "", "out.onnx")],
        "otherwise": [["--otherwise", value] for value in ("int8", "")],
        "round_minimums": [["--round-minimums=yes"]],
        "debug": [["--debug=yes"]],
    },
    "required-ops": {
        "models": [["MODEL", value] for value in _MODELS],
        "output": [["--output", value] for value in ("d.txt", "no/such/d.config", ".", "")],
        "kernels": [["--kernels=yes"]],
        "types": [["--types=yes"]],
        "library": [["--library", value] for value in ("nowhere.so", ".", "")],
        "debug": [["--debug=yes"]],
    },
    "ops-path": {"debug": [["--debug=yes"]]},
}
"""Command to the name of an option or argument to wrong words: those of an option are appended, the
value of an argument takes the place of the right one."""


def words_of(command: str, name: str, wrong: list[str]) -> list[str]:
    """Return the words of a command with wrong ones among them."""
    right = list(RIGHT[command])
    if wrong[0] not in ("MODEL", "FACTORY", "SOURCE", "TEXT", "RECORD", "MODULE"):
        return [*right, *wrong]
    place = len(right) - 1 if name == "after" else right.index(wrong[0])
    right[place] = wrong[1]
    return right


CASES = [
    (command, name, wrong)
    for command, options in WRONG.items()
    for name, rows in options.items()
    for wrong in rows
]
