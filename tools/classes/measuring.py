"""One class of transformers: built, exported, converted, run at two sizes, and generating."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import warnings
from typing import Any

import onnx_ir
import torch
import transformers
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.utils import _pytree as pytree
from transformers import CONFIG_MAPPING
from transformers.exporters.configs import DynamoConfig
from transformers.exporters.exporter_dynamo import (
    DynamoExporter,
    register_cache_pytrees_for_model,
)
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter
from transformers.exporters.utils import get_leaf_tensors, prepare_for_export

from coreai_onnx import TorchConverter
from coreai_onnx.errors import CoreaiError
from coreai_onnx.huggingface.transformers_backend import CoreaiConfig, CoreaiExporter, CoreaiRunner
from coreai_onnx.runtime import kernels_built
from tests.support.tolerances import as_numpy
from tools.backend.measuring import open_stock
from tools.classes.configurations import small_configs
from tools.classes.feeding import found_inputs
from tools.foreign.case import FIRST, SECOND, SEED, Case, Inputs, Size, dims_that_vary, spread
from tools.foreign.measuring import (
    Outcome,
    Progress,
    Subject,
    opened_runner,
    refusal,
    run_at_both,
)
from tools.operators.measuring import (
    CONVERSION_FAILED,
    MISMATCH,
    NOT_EXPORTED,
    PASS,
    RUN_FAILED,
    SKIPPED,
    limited,
    line,
    reason,
)

SECONDS = 100
"""At most for one step, of the processor's time."""
PARAMETERS = 60_000_000
"""A model with more has a configuration that was not made small."""
NEW_TOKENS = 8
_GENERATES = re.compile("LMHeadModel$|ForCausalLM$|GenerationDecoder$")
_CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def built(model_type: str, name: str) -> tuple[Any, list[Inputs]]:
    """Return a small model of a class and its inputs at both sizes.

    Raises:
        ValueError: If no small configuration gives a model that runs.
    """
    reasons = []
    for config in small_configs(_config_class(model_type, name)):
        # BERT and its relatives are encoders unless they are told; their text models generate.
        if _GENERATES.search(name) and getattr(config, "is_decoder", None) is False:
            config.is_decoder = not config.is_encoder_decoder
        if getattr(config, "is_encoder_decoder", False):
            config.decoder_start_token_id = getattr(config, "decoder_start_token_id", None) or 0
        try:
            _check_size(name, config)
            torch.manual_seed(SEED)
            model = _constructed(name, config).eval().requires_grad_(requires_grad=False)
            for layer in model.modules():
                spread(layer)
                _enliven(layer)
            return model, found_inputs(model, (FIRST, SECOND))
        except Exception as error:  # noqa: BLE001 - any configuration may be impossible
            reasons.append(line(error))
    raise ValueError(reasons[0])


def _enliven(layer: torch.nn.Module) -> None:
    """Give a convolution weights that keep the scale of its input.

    Those of an untrained model are so small that deep features hardly depend on the image, and
    a detector has to choose among equal scores.
    """
    weight = getattr(layer, "weight", None)
    if isinstance(layer, _CONVOLUTIONS) and isinstance(weight, torch.nn.Parameter):
        scale = weight.std() * weight[0].numel() ** 0.5
        if 0 < scale < 1:
            weight.div_(scale)


def _check_size(name: str, config: Any) -> None:
    with torch.device("meta"):
        weights = sum(p.numel() for p in _constructed(name, config).parameters())
    if weights > PARAMETERS:
        raise ValueError(f"{weights:,} parameters")


def _config_class(model_type: str, name: str) -> Any:
    """Return the configuration of a class; a part of a model has its own."""
    return getattr(transformers, name).config_class or CONFIG_MAPPING[model_type]


def _constructed(name: str, config: Any) -> Any:
    return getattr(transformers, name)(copy.deepcopy(config))


class ClassSubject(Subject):
    """A class with what torch makes of it, exported as transformers' exporters do.

    Attributes:
        fixed: Whether the export fixes every dim, because no other succeeded.
    """

    def __init__(self, model_type: str, name: str) -> None:
        """Build the model and run it.

        Raises:
            Exception: Whatever the model raises in torch itself.
        """
        self.fixed = False
        self.dtype = torch.float32
        self.case = Case(name, "transformers", dict, dict)  # type: ignore[arg-type]
        self._exported: ExportedProgram | None = None
        with limited(SECONDS):
            self.module, self.given = built(model_type, name)
            register_cache_pytrees_for_model(self.module)
            sizes = (FIRST, SECOND)
            prepared = [_prepared(self.module, each) for each in self.given]
            self.arguments = dict(zip(sizes, prepared, strict=True))
            self.expected = {s: self._expected(a) for s, a in self.arguments.items()}

    def flat(self, size: Size) -> list[torch.Tensor]:
        """Return the tensors among the arguments, in the order of the exported program.

        torch.export sorts keyword arguments as the signature of forward has them.
        """
        given = self.arguments[size]
        if self._exported is not None and self._exported.call_spec.in_spec is not None:
            names = self._exported.call_spec.in_spec.children()[1].context
            given = {name: given[name] for name in names}
        return [x for x in pytree.tree_leaves(given) if torch.is_tensor(x)]

    def tensors_of(self, results: list[Any]) -> list[Any]:
        """Return the results of the exported program that are tensors in torch, not numbers."""
        specs = self.exported().graph_signature.output_specs
        outputs = [spec for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
        if len(outputs) != len(results):
            return results
        pairs = zip(results, outputs, strict=True)
        return [x for x, spec in pairs if isinstance(spec.arg, TensorArgument)]

    def shapes(self) -> Any:
        """Return ``Dim.AUTO`` for every dim that differs between the two sizes."""
        return pytree.tree_map(dims_that_vary, self.arguments[FIRST], self.arguments[SECOND])

    def exported(self) -> ExportedProgram:
        """Return what torch.export makes of the module, from the first call on.

        Raises:
            Exception: What the first of three attempts raised.
        """
        if self._exported is None:
            first: Exception | None = None
            for dynamic, deferred in ((True, False), (True, True), (False, False)):
                try:
                    self._exported = self._attempt(dynamic=dynamic, deferred=deferred)
                except Exception as error:  # noqa: BLE001 - torch.export raises anything
                    first = first or error
                    continue
                self.fixed = not dynamic
                return self._exported
            assert first is not None
            raise first
        return self._exported

    def _attempt(self, *, dynamic: bool, deferred: bool) -> ExportedProgram:
        config = DynamoConfig(
            dynamic=dynamic,
            dynamic_shapes=self.shapes() if dynamic else None,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )
        arguments = copy.deepcopy(self.arguments[FIRST])
        with limited(SECONDS):
            program, _ = DynamoExporter().export_program(self.module, arguments, config)
        assert isinstance(program, ExportedProgram)
        return program


def _prepared(model: Any, given: Inputs) -> Inputs:
    """Return inputs with what transformers computes outside of an exported program."""
    return dict(prepare_for_export(model, copy.deepcopy(given))[1])


def measure_ours(subject: ClassSubject, progress: Progress) -> Outcome:
    """Return what becomes of a class that is exported and converted."""
    progress(NOT_EXPORTED)
    try:
        exported = subject.exported()
    except Exception as error:  # noqa: BLE001 - torch.export raises anything
        return Outcome(NOT_EXPORTED, line(error))
    progress(CONVERSION_FAILED)
    try:
        with limited(SECONDS), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = TorchConverter().add_exported_program(exported).to_onnx().optimize()
    except CoreaiError as error:
        return refusal(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    progress(RUN_FAILED)
    run = opened_runner(program)
    kernels = sorted({False, kernels_built()})
    return run_at_both(subject, lambda *given: subject.tensors_of(run(*given)), kernels)


def measure_generation(subject: ClassSubject, progress: Progress) -> Outcome:
    """Return whether ``generate`` gives the tokens of torch with the exported parts."""
    model = subject.module
    progress(SKIPPED)
    try:
        with limited(SECONDS):
            wanted = _generated(model, subject.given[0])
    except Exception as error:  # noqa: BLE001 - a model that does not generate is no finding
        return Outcome(SKIPPED, line(error))
    progress(NOT_EXPORTED)
    try:
        with limited(3 * SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = CoreaiExporter().export_for_generation(
                model, copy.deepcopy(subject.given[0]), CoreaiConfig(dynamic=True)
            )
    except CoreaiError as error:
        return Outcome(CONVERSION_FAILED, reason(error))
    except Exception as error:  # noqa: BLE001 - torch.export raises anything
        return Outcome(NOT_EXPORTED, line(error))
    if not {"prefill", "decode"} <= exported.runners.keys():
        return Outcome(SKIPPED, "split into " + ", ".join(exported.runners))
    progress(RUN_FAILED)
    try:
        with limited(SECONDS), _replaced(model, exported.runners):
            found = _generated(model, subject.given[0])
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no base
        return Outcome(RUN_FAILED, reason(error))
    if found != wanted:
        return Outcome(MISMATCH, f"{found}, expected {wanted}"[:300])
    return Outcome(PASS)


def _generated(model: Any, given: Inputs) -> list[list[int]]:
    if not model.can_generate():
        raise ValueError("the class does not generate")
    with torch.no_grad():
        tokens = model.generate(
            **copy.deepcopy(given),
            do_sample=False,
            num_beams=1,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
        )
    found: list[list[int]] = getattr(tokens, "sequences", tokens).tolist()
    return found


class _replaced:  # noqa: N801 - used as a function
    """Lets a model compute with the exported parts of its generation."""

    def __init__(self, model: Any, runners: dict[str, CoreaiRunner]) -> None:
        self.model, self.runners, self.calls = model, runners, 0

    def _call(self, **given: Any) -> Any:
        runner = self.runners["decode" if self.calls else "prefill"]
        self.calls += 1
        kept = {name: x for name, x in given.items() if name in runner.metadata.kwargs}
        return runner(**kept)

    def __enter__(self) -> None:
        call = self._call

        @functools.wraps(type(self.model).forward)  # generate reads the signature
        def forward(**given: Any) -> Any:
            return call(**given)

        forward.__signature__ = inspect.signature(self.model.forward)  # type: ignore[attr-defined]
        self.model.forward = forward

    def __exit__(self, *_: object) -> None:
        del self.model.forward


def measure_transformers(subject: ClassSubject, progress: Progress) -> Outcome:
    """Return what becomes of a class with transformers' own ONNX exporter."""
    progress(NOT_EXPORTED)
    try:
        subject.exported()
    except Exception as error:  # noqa: BLE001 - torch.export raises anything
        return Outcome(NOT_EXPORTED, line(error))
    progress(CONVERSION_FAILED)
    dynamic = not subject.fixed
    config = OnnxConfig(dynamic=dynamic, dynamic_shapes=subject.shapes() if dynamic else None)
    try:
        with limited(2 * SECONDS):
            arguments = copy.deepcopy(subject.arguments[FIRST])
            model, _ = OnnxExporter().export_program(subject.module, arguments, config)
            session = open_stock(onnx_ir.to_proto(model))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    progress(RUN_FAILED)
    names = [each.name for each in session.get_inputs()]
    fed = {}
    for size, given in subject.arguments.items():
        tensors = get_leaf_tensors(given)
        fed[_key(subject.flat(size))] = {name: as_numpy(tensors[name]) for name in names}
    return run_at_both(subject, lambda flat, _: list(session.run(None, fed[_key(flat)])), [False])


def _key(flat: list[torch.Tensor]) -> tuple[int, ...]:
    """Return what names the tensors of one size."""
    return tuple(x.data_ptr() for x in flat)
