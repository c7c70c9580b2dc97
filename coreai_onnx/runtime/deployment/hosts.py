"""Ranks and stages of a model on several hosts.

The transport is gloo of ``torch.distributed``: each process has a connection to every other one, so
that it notices at once when one of them ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import numpy as np

from coreai_onnx.errors import InputError, SessionError, failures_as, reason_of
from coreai_onnx.model.dependencies import require
from coreai_onnx.model.metadata import read_stage
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import checked_timeout
from coreai_onnx.runtime.tensors.outputs import Array

_KINDS = {1: "all_reduce", 2: "all_gather"}
"""The numbers of ``RankGroup::Kind``."""
_HEADER = 16
_FIRST = 1 << 14
"""Bytes of a part that go with its header, so that most parts of a token are one message."""
_MOST_DIMS = 32
_LOOK = 0.2
"""Seconds after which a rank looks whether others have failed."""
_PATIENCE = 300.0
"""Seconds that a stage waits for the others if its session has no timeout, as kernels do."""
_Exchange = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
    ctypes.c_double, ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip


class _Transport(ctypes.Structure):
    """``RankTransport`` of ``custom_ops/memory/rank_transport.h``."""

    _fields_ = (("exchange", _Exchange), ("rank", ctypes.c_uint64), ("ranks", ctypes.c_uint64))


class Hosts:
    """A process among those that run a model together, each with a file of its own.

    ```python
    with Hosts("10.0.0.1:29500", rank=1, ranks=2) as hosts:
        model = LanguageModel.open("my_llama_ranks/rank_1", group=hosts)
    ```

    The connections are neither encrypted nor authenticated: they are for a private network.

    Attributes:
        rank: The rank of this process.
        ranks: How many there are.
    """

    def __init__(self, address: str, rank: int, ranks: int, *, timeout: float = 60.0) -> None:
        """Connect to the other processes, and wait until all are there.

        Args:
            address: ``host:port`` of rank 0, which listens there; other ports are any.
            rank: The rank of this process, from 0.
            ranks: How many there are.
            timeout: Seconds to wait for the others. A run waits as long as `session` says.

        Raises:
            SessionError: If the address is wrong or cannot be reached, a process does not come, has
                another number of ranks, or has this rank already; or torch has no gloo.
        """
        if not 0 <= rank < ranks:
            raise SessionError(f"rank must be 0 to {ranks - 1}, got {rank}")
        self.rank, self.ranks = rank, ranks
        self._lock, self._failure, self._texts = threading.Lock(), "", 0
        self._closed = threading.Event()
        seconds = checked_timeout(timeout) or _PATIENCE
        with failures_as(SessionError, f"rank {rank} of {ranks} cannot join {address}"):
            self._join(address, seconds)
        threading.Thread(target=self._watch, daemon=True).start()
        self._transport = _Transport(_Exchange(self._exchange), rank, ranks)
        self.address = ctypes.addressof(self._transport)

    def _join(self, address: str, seconds: float) -> None:
        # The packages for servers need no torch.
        import torch

        names: Any = torch.distributed  # not all of them are declared

        end = time.monotonic() + seconds
        place = urlsplit(f"tcp://{address}")
        if not place.hostname or not place.port:
            raise SessionError(f"the address must be host:port, got {address!r}")
        at, patience = (place.hostname, place.port), timedelta(seconds=seconds)
        open_store = partial(names.TCPStore, *at, timeout=patience, wait_for_workers=False)
        store: Any = open_store(is_master=True) if self.rank == 0 else None
        own = _own_address(at, end)
        store = store or open_store()
        if store.add(f"joined_{self.rank}", 1) > 1:
            raise SessionError("another process has joined as this rank")
        store.set(f"ranks_{self.rank}", str(self.ranks))
        for other in range(self.ranks):
            store.set_timeout(timedelta(seconds=max(0.001, end - time.monotonic())))
            with failures_as(SessionError, f"rank {other} did not come within {seconds:g} s"):
                count = int(store.get(f"ranks_{other}"))
            if count != self.ranks:
                raise SessionError(f"rank {other} is one of {count}")
        store.set_timeout(patience)
        gloo = names.ProcessGroupGloo
        require("torch", [(gloo, ("_Options", "create_device"))])
        options = gloo._Options()  # noqa: SLF001  # as torch's own launcher
        require("torch", [(options, ("_devices", "_timeout"))])
        # gloo would take the address of the host's name, which may be that of the loopback.
        options._devices = [gloo.create_device(hostname=own)]  # noqa: SLF001
        options._timeout = patience  # noqa: SLF001
        self._store, self._torch = store, torch
        self._group: Any = gloo(store, self.rank, self.ranks, options)
        self._messages = torch.zeros((self.ranks, _HEADER + _FIRST), dtype=torch.uint8)
        self._headers = self._messages.numpy()[:, :_HEADER].view(np.int64)

    def close(self) -> None:
        """Close the connections; the other processes fail as soon as they wait for this one."""
        self._fail("it is closed")

    def __enter__(self) -> Self:
        """Return the group."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections."""
        self.close()

    def _exchange(
        self, kind: int, own: int, size: int, parts: int, timeout: float, why: int, limit: int
    ) -> int:
        """Exchange parts of equal size: ``RankTransport::exchange``."""
        try:
            with self._lock, self.failing():
                self._swap(kind, own, size, parts, timeout)
        except BaseException as error:  # noqa: BLE001  # ctypes would print and ignore it
            text = reason_of(error).encode()[: limit - 1]
            ctypes.memmove(why, text + b"\0", len(text) + 1)
            return 0
        return 1

    def _swap(self, kind: int, own: int, size: int, parts: int, timeout: float) -> None:
        first = min(size, _FIRST)
        rows = list(self._messages)
        self._headers[self.rank] = kind, size
        ctypes.memmove(rows[self.rank].data_ptr() + _HEADER, own, first)
        self._meet(rows, timeout)
        for other, (theirs, count) in enumerate(self._headers.tolist()):
            if (theirs, count) != (kind, size):
                raise SessionError(
                    f"rank {other} runs {_KINDS.get(theirs)} of {count} bytes, "
                    f"rank {self.rank} {_KINDS[kind]} of {size} bytes"
                )
        for other, row in enumerate(rows):
            ctypes.memmove(parts + other * size, row.data_ptr() + _HEADER, first)
        if size > first:
            ctypes.memmove(parts + self.rank * size, own, size)
            content = (ctypes.c_uint8 * (self.ranks * size)).from_address(parts)
            whole = self._torch.frombuffer(content, dtype=self._torch.uint8)
            self._meet([row[first:] for row in whole.view(self.ranks, size)], timeout)

    def _meet(self, rows: Sequence[Any], timeout: float) -> None:
        """Send the row of this rank to all others, and receive theirs."""
        others = [other for other in range(self.ranks) if other != self.rank]
        works = [(other, self._begin("recv", rows[other], other)) for other in others]
        works += [(other, self._begin("send", rows[self.rank], other)) for other in others]
        end = time.monotonic() + timeout
        for other, work in works:
            _wait(other, work, end)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """End the group if the block fails: others wait for this rank."""
        self._connected()
        try:
            yield
        except BaseException as error:
            self._fail(reason_of(error))
            with contextlib.suppress(RuntimeError):  # rank 0 has ended
                self._store.set("failed", f"rank {self.rank}: {reason_of(error)}")
            raise

    def _fail(self, why: str) -> None:
        # Its end closes the connections, which others notice that wait for this rank.
        self._failure = self._failure or why
        self._group = None
        self._closed.set()

    def _watch(self) -> None:
        """Close the connections when any rank has failed: others may wait for this one instead."""
        with contextlib.suppress(RuntimeError):  # rank 0 has ended: who waits for it notices
            while not self._closed.wait(_LOOK):
                if self._store.check(["failed"]):
                    self._fail(self._store.get("failed").decode())

    def _connected(self) -> Any:
        group = self._group
        if group is None:
            raise SessionError(f"the group of ranks has failed: {self._failure}")
        return group

    def _begin(self, call: str, row: Any, other: int) -> Any:
        """Begin to send or to receive a message."""
        begin = getattr(self._connected(), call)
        with _naming(other):
            return begin([row], other, 0)

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks; each gives one, in calls of equal order."""
        self._texts += 1
        keys = [f"text_{self._texts}_{rank}" for rank in range(self.ranks)]
        self._store.set(keys[self.rank], text)
        return [self._store.get(key).decode() for key in keys]

    def send(self, value: Array, to: int) -> Sent:
        """Begin to send an array to a rank; `wait` ends it."""
        data, torch = np.require(value, requirements=("C", "W")), self._torch
        head = torch.tensor(
            [data.itemsize, data.ndim, *data.shape, *[0] * (_MOST_DIMS - data.ndim)]
        )
        rows = [head] + [torch.from_numpy(data.reshape(-1).view(np.uint8))] * bool(data.size)
        return Sent(to, tuple(rows), tuple(self._begin("send", row, to) for row in rows))

    def receive(self, dtype: np.dtype[Any], source: int, timeout: float) -> Array:
        """Return an array that a rank sends."""
        end = time.monotonic() + timeout
        head = self._torch.zeros(2 + _MOST_DIMS, dtype=self._torch.int64)
        _wait(source, self._begin("recv", head, source), end)
        size, rank, *dims = head.tolist()
        if size != dtype.itemsize:
            raise SessionError(f"rank {source} sends elements of {size} bytes, not {dtype}")
        value = np.empty(dims[:rank], dtype)
        if value.size:
            row = self._torch.from_numpy(value.reshape(-1).view(np.uint8))
            _wait(source, self._begin("recv", row, source), end)
        return value


class Sent(NamedTuple):
    """An array on its way to a rank, with the memory that it is in."""

    to: int
    rows: tuple[Any, ...]
    works: tuple[Any, ...]

    def wait(self, timeout: float) -> None:
        """Wait until it has left."""
        for work in self.works:
            _wait(self.to, work, time.monotonic() + timeout)


def _own_address(at: tuple[str, int], end: float) -> str:
    """Return the address of this host on the way to another, as soon as that one listens."""
    while True:
        try:
            with socket.create_connection(at, max(0.001, end - time.monotonic())) as connection:
                return str(connection.getsockname()[0])
        except ConnectionRefusedError:  # rank 0 may start later
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _wait(other: int, work: Any, end: float) -> None:
    """Wait for a message from or to a rank."""
    with _naming(other, end):
        work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))


@contextlib.contextmanager
def _naming(other: int, end: float = math.inf) -> Iterator[None]:
    """Name the rank in an error of gloo, which names a port."""
    try:
        yield
    except RuntimeError:
        late = time.monotonic() >= end - 0.01  # gloo counts milliseconds
        what = "did not come in time" if late else "has ended or failed"
        raise SessionError(f"rank {other} {what}") from None


class Stage:
    """A stage of `OnnxProgram.split` in a process of its own, which keeps its states.

    ```python
    with Hosts("10.0.0.1:29500", rank=1, ranks=2) as hosts:
        results = Stage("stage_1.onnx", hosts).run(x=x)
    ```

    A stage reads and writes what crosses its borders once in a run, so that no operator of its
    file sends or receives.
    """

    def __init__(self, path: str | PathLike[str], hosts: Hosts, **settings: Any) -> None:
        """Open the file of a stage; all processes do so.

        Args:
            path: The file that a program of ``pipeline.stages`` has saved.
            hosts: The processes, one for each stage, in order.
            **settings: As for `session`.

        Raises:
            SessionError: If the file is not that stage of a pipeline, cannot be opened, or another
                process fails.
        """
        self._hosts, self._session = hosts, Session(path, **settings)
        self._timeout = self._session.timeout or _PATIENCE
        with failures_as(SessionError, f"{path} is not a stage of a pipeline"):
            place = read_stage(self._session.ort.get_modelmeta().custom_metadata_map)
        if (place.stage, place.stages) != (hosts.rank, hosts.ranks):
            raise SessionError(
                f"{path} is stage {place.stage} of {place.stages}, "
                f"the process is rank {hosts.rank} of {hosts.ranks}"
            )
        inputs, outputs = self._session.inputs, self._session.outputs
        own = {
            "inputs": [x.name for x in inputs],
            "states": self._session.states,
            "outputs": {x.name: x.numpy_dtype for x in outputs},
        }
        self._told = [json.loads(text) for text in hosts.gather(json.dumps(own))]
        self._outputs = place.outputs
        self._maker = {x: i for i, one in enumerate(self._told) for x in one["outputs"]}
        self._states = {x for one in self._told for x in one["states"]}
        self._inputs = {x for one in self._told for x in one["inputs"]} - self._maker.keys()

    def run(self, **inputs: object) -> dict[str, Array]:
        """Run the model together with the other processes, which run the same inputs.

        Args:
            **inputs: All inputs of the model by name; states by name replace the carried ones.

        Returns:
            The outputs of the model, by name, in each process.

        Raises:
            InputError: If an input is missing, unknown or wrong.
            SessionError: If a stage fails; then all do.
        """
        if inputs.keys() - self._states != self._inputs:
            needed = ", ".join(sorted(self._inputs))
            raise InputError(f"inputs must be {needed}, got {', '.join(inputs) or 'none'}")
        with self._hosts.failing():
            return self._run(inputs)

    def _run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        hosts, session = self._hosts, self._session
        values: dict[str, Any] = dict(inputs)
        for info in session.inputs:
            if info.name in self._maker:
                values[info.name] = self._received(info.name)
        names = [*(x.name for x in session.inputs), *session.states]
        values |= session.run(**{name: values[name] for name in names if name in values})
        # All begin before the first is waited for; each process receives in the same order: what
        # its stage reads, then the results that it does not have.
        readers = [one["inputs"] for one in self._told]
        sent = [
            hosts.send(values[name], to)
            for is_result in (False, True)
            for to in range(hosts.ranks)
            for name in (self._outputs if is_result else readers[to])
            if self._maker.get(name) == hosts.rank != to and is_result != (name in readers[to])
        ]
        for name in self._outputs:
            if name not in values:
                values[name] = self._received(name)
        for one in sent:
            one.wait(self._timeout)
        return {name: values[name] for name in self._outputs}

    def _received(self, name: str) -> Array:
        source = self._maker[name]
        dtype = np.dtype(self._told[source]["outputs"][name])
        return self._hosts.receive(dtype, source, self._timeout)
