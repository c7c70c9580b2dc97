"""The memory of states: in place, in turn, with capacity ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.states import streams
from tests.support.small_models import counter_model, growing_model, rows_model
from tests.support.tolerances import assert_close

WIDE, FLAT = np.ones(64, np.float32), np.array([64])


def call(session: Session, row: int, value: float, shape: Any = FLAT) -> Any:
    return session.run(WIDE * np.float32(value), np.array([[row]]), shape)


def addresses(session: Session, name: str = "cache") -> tuple[int, int]:
    """Return the addresses of a state's memory and of its spare memory, 0 for none."""
    state = session._stream.states[name]
    own = (state.memory, state.spare)
    return tuple(0 if x is None else x.ctypes.data for x in own)  # type: ignore[return-value]


def test_a_state_is_updated_in_place() -> None:
    session = Session(rows_model(), kernels=False)
    places = set()
    for row in range(4):
        outputs = call(session, row, 3)
        assert_close(outputs["y"], np.full(64, 512 + 2 * (row + 1), np.float32))
        places.add(addresses(session))
    assert len(places) == 1
    assert next(iter(places))[1] == 0, "one memory is enough"


@pytest.mark.parametrize("reads_old", [False, True])
def test_a_stream_starts_from_zeros_of_its_own(reads_old: bool) -> None:
    stream = Session(rows_model(reads_old=reads_old), kernels=False).stream(
        zeros={"cache": (512, 64)}
    )
    assert (stream.state["cache"] == 0).all()
    before = addresses(stream)
    outputs = call(stream, 2, 3)
    expected = np.zeros((512, 64), np.float32)
    expected[2] = 3
    assert_close(outputs["y"], np.full(64, 3, np.float32))
    assert_close(stream.state["cache"], expected)
    place = addresses(stream)[1 if reads_old else 0]
    assert place == before[0], "the zeros have the memory of the stream"


@pytest.mark.parametrize(
    ("zeros", "message"),
    [({"other": (1,)}, "no state 'other'; there are cache"), ({"cache": (2, 2)}, "cache")],
)
def test_zeros_of_a_wrong_state(zeros: Any, message: str) -> None:
    session = Session(rows_model(), kernels=False)
    with pytest.raises(InputError, match=message):
        session.stream(zeros=zeros)


def test_a_state_that_is_read_later_has_two_memories_in_turn() -> None:
    session = Session(rows_model(reads_old=True), kernels=False)
    places = []
    for row in range(6):
        assert_close(call(session, row, 3)["y"], np.full(64, 2, np.float32))
        places.append(addresses(session)[0])
    assert len(set(places)) == 2
    assert places[0] == places[2] == places[4]


def test_memory_of_a_state_that_grows_has_capacity_ahead() -> None:
    session = Session(growing_model(), kernels=False)
    empty, token = np.zeros((2, 0, 256), np.float32), np.ones((2, 1, 256), np.float32)
    session.run(np.repeat(token, 40, axis=1), cache=empty)
    capacities = set()
    for length in range(41, 400):
        outputs = session.run(token)
        assert_close(outputs["y"], np.full((2, 256), length, np.float32))
        assert outputs.states["cache"].shape == (2, length, 256) if length % 50 == 0 else True
        state = session._stream.states["cache"]
        capacities |= {len(x) for x in (state.memory, state.spare) if x is not None}
    assert len(capacities) < 20, "the memory is not allocated anew at each call"


def test_a_given_state_is_not_written_to() -> None:
    session = Session(rows_model(), kernels=False)
    given = np.full((512, 64), 2, np.float32)
    for _ in range(2):
        outputs = session.run(WIDE, np.array([[0]]), FLAT, cache=given)
        assert_close(outputs["y"], np.full(64, 1023, np.float32))
    assert (given == 2).all()
    session.state = {"cache": given}
    call(session, 0, 7)
    assert (given == 2).all()


def test_states_of_earlier_calls() -> None:
    """They are what they were, or an error; never those of another call."""
    session = Session(rows_model(), kernels=False)
    first = call(session, 0, 5)
    assert_close(first.states["cache"][0], WIDE * 5)
    held = first.states["cache"]
    second = call(session, 0, 6)
    assert_close(held[0], WIDE * 5)
    with pytest.raises(SessionError, match="a later call has overwritten the states 'cache'"):
        _ = first.states
    session.reset()
    with pytest.raises(SessionError, match="has overwritten"):
        _ = second.states
    small = Session(counter_model(), kernels=False)
    early = small.run(WIDE)
    small.run(WIDE)
    assert_close(early.states["count"], np.array([2], np.float32))


def test_a_call_that_fails_before_the_update_changes_nothing() -> None:
    session = Session(rows_model(), kernels=False)
    call(session, 0, 5)
    before = session.state["cache"]
    with pytest.raises(SessionError, match="embed"):
        session.run(np.ones(63, np.float32), np.array([[1]]), FLAT)
    assert_close(session.state["cache"], before)
    assert_close(call(session, 1, 1)["y"], np.full(64, 516, np.float32))


def test_a_call_that_fails_after_the_update_changes_nothing() -> None:
    session = Session(rows_model(), kernels=False)
    call(session, 0, 5)
    before, place = session.state["cache"], addresses(session)
    with pytest.raises(SessionError, match="last"):
        call(session, 0, 9, np.array([63]))
    assert_close(session.state["cache"], before)
    assert_close(call(session, 1, 1)["y"], np.full(64, 516, np.float32))
    assert addresses(session) == place, "the memory stays"


def test_a_call_that_fails_leaves_states_with_two_memories_as_they_were() -> None:
    session = Session(rows_model(reads_old=True), kernels=False)
    call(session, 0, 5)
    before = session.state["cache"]
    with pytest.raises(SessionError, match="last"):
        call(session, 1, 9, np.array([63]))
    assert_close(session.state["cache"], before)
    assert_close(call(session, 1, 3)["y"], np.full(64, 2, np.float32))


def test_forks_have_their_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in (1, streams.BOUND_BYTES, 1 << 30):
        monkeypatch.setattr(streams, "BOUND_BYTES", bound)
        session = Session(rows_model(), kernels=False)
        call(session, 0, 5)
        fork = session.fork()
        call(session, 1, 9)
        assert_close(call(fork, 1, 1)["y"], np.full(64, 516, np.float32))
        assert_close(call(session, 2, 1)["y"], np.full(64, 524, np.float32))


def test_every_order_of_calls_gives_the_states_of_numpy() -> None:
    """What is known of states updated in place is not used after anything else changed them."""
    session = Session(rows_model(), kernels=False)
    expected = np.ones((512, 64), np.float32)
    session.state = {"cache": expected.copy()}
    random, values = np.random.default_rng(0), set()
    for step in range(60):
        row, value = int(random.integers(512)), float(random.integers(1, 9))
        what = random.choice(["call", "call", "call", "fail", "give", "set", "fork"])
        if what == "give":
            expected = np.full_like(expected, step)
        if what == "set":
            expected = np.full_like(expected, -step)
            session.state = {"cache": expected}
        if what == "fork":
            session = session.fork()
        if what == "fail":
            with pytest.raises(SessionError):
                call(session, row, value, np.array([63]))
            assert_close(session.state["cache"], expected)
            continue
        given = {"cache": expected.copy()} if what == "give" else {}
        session.run(WIDE * np.float32(value), np.array([[row]]), FLAT, **given)
        expected = expected.copy()
        expected[row] = value
        assert_close(session.state["cache"], expected)
        values.add(id(session._stream.states["cache"].value))
    assert len(values) < 50, "calls that follow each other share a value"
