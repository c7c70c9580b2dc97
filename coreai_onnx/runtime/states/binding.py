"""Runs of onnxruntime on values that stay bound from one run to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnxruntime as ort

from coreai_onnx.errors import SessionError

Values = Mapping[str, ort.OrtValue]


class Binding:
    """The inputs and outputs of a model, some of which are the same values in every run.

    A token of a 12-layer Llama took 0.1 ms more when its 24 states were bound anew: "Calls with a
    static cache" in docs/internals/performance_log.md.

    Attributes:
        names: The names of the outputs that each run returns.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        outputs: Sequence[str],
        fixed: Values | None = None,
        results: Values | None = None,
    ) -> None:
        """Keep the values that stay, which the first run binds.

        Args:
            session: The model.
            outputs: The names of all outputs.
            fixed: Inputs of every run, by name.
            results: Values that every run writes outputs to, by the name of the output.
        """
        self._session, self._fixed, self._results = session, fixed or {}, results or {}
        self.names = tuple(name for name in outputs if name not in self._results)
        self._binding: ort.IOBinding | None = None
        self._bound: frozenset[str] = frozenset()

    def run(
        self, feeds: Values, targets: Values, timeout: float | None = None
    ) -> dict[str, ort.OrtValue]:
        """Run the model and return the outputs that are not fixed, by name.

        Args:
            feeds: The inputs that are not fixed.
            targets: Values that outputs are written to, by name; onnxruntime allocates the others.
            timeout: Maximum time in seconds; None means no limit.

        Raises:
            SessionError: If onnxruntime fails, or does not finish in time.
        """
        # An optional input of the last run would stay bound.
        if self._binding is None or feeds.keys() != self._bound:
            self._binding, self._bound = self._session.io_binding(), frozenset(feeds)
            for name, value in self._fixed.items():
                self._binding.bind_ortvalue_input(name, value)
            for name, value in self._results.items():
                self._binding.bind_ortvalue_output(name, value)
        binding = self._binding
        ended: threading.Event | None = None
        try:
            for name, value in feeds.items():
                binding.bind_ortvalue_input(name, value)
            for name in self.names:
                if name in targets:
                    binding.bind_ortvalue_output(name, targets[name])
                else:
                    binding.bind_output(name)
            # run_with_ort_values takes 190 µs for a model of one product, and this 35. Options
            # that set nothing take 0.1 ms: onnxruntime looks for an entry and catches the failure.
            if timeout is None:
                self._session.run_with_iobinding(binding)
            else:
                ended = threading.Event()
                with _deadline(timeout, ended) as options:
                    self._session.run_with_iobinding(binding, options)
            # get_outputs() would make a second value for each output, which costs 2 µs each.
            results, start = binding.get_outputs_as_ortvaluevector(), len(self._results)
            # By index: a value that an iteration yields does not keep the vector alive.
            values = {n: ort.OrtValue(results[start + i]) for i, n in enumerate(self.names)}
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            self.release()
            # onnxruntime raises the same exception for a terminated run as for a failed one.
            if ended is not None and ended.is_set():
                raise SessionError(
                    f"the model did not finish within {timeout:g} s\n  raise the timeout if the "
                    "model is slow; a Loop may be endless"
                ) from error
            raise SessionError(f"onnxruntime failed while running\n  {error}") from error
        return values | dict(targets)

    def release(self) -> None:
        """Release the inputs and outputs of the last run; the next one binds all values anew."""
        self._binding = None


@contextmanager
def _deadline(seconds: float, ended: threading.Event) -> Iterator[ort.RunOptions]:
    """Yield run options that end a run after a time, and set an event then.

    onnxruntime checks them before each node, also in the body of a ``Loop``; a single operator is
    not interrupted.
    """
    options = ort.RunOptions()

    def end() -> None:
        # First, because the run may fail before the next line has returned.
        ended.set()
        options.terminate = True

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()
