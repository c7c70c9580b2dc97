"""Codes in bytes: the stream is the one that its formula says, and packing loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreai_onnx.model.packed_codes import PACKED_BITS, pack_codes, pack_rows, unpack_codes


@given(bits=st.sampled_from(PACKED_BITS), rows=st.integers(0, 4), units=st.integers(0, 5))
def test_the_bytes_are_a_little_endian_bit_stream(bits: int, rows: int, units: int) -> None:
    codes = np.random.default_rng(units).integers(0, 1 << bits, (rows, 8 * units))
    packed = pack_codes(codes, bits)
    stream = (codes[..., None] >> np.arange(bits)) & 1
    expected = np.packbits(
        stream.reshape(rows, 8 * units * bits).astype(np.uint8), axis=1, bitorder="little"
    )
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, expected)
    np.testing.assert_array_equal(unpack_codes(packed, bits), codes)


def test_axes_in_front_are_kept() -> None:
    codes = np.arange(48).reshape(2, 3, 8) % 8
    assert pack_codes(codes, 3).shape == (2, 3, 3)
    np.testing.assert_array_equal(unpack_codes(pack_codes(codes, 3), 3), codes)


@pytest.mark.parametrize("bits", PACKED_BITS)
def test_the_last_byte_of_a_row_is_filled_up(bits: int) -> None:
    codes = np.arange(2 * 9).reshape(2, 9) % (1 << bits)
    found = unpack_codes(pack_rows(codes, bits), bits)
    np.testing.assert_array_equal(found[:, :9], codes)
    assert not found[:, 9:].any()
    assert found.shape[1] < 9 + 8
    np.testing.assert_array_equal(pack_rows(codes[:, :8], bits), pack_codes(codes[:, :8], bits))


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a code has 7 bits, not one of \(8, 6, 5, 4, 3, 2, 1\)"):
        pack_codes(np.zeros(8, np.uint8), 7)
    with pytest.raises(ValueError, match="codes of 4 bits are 0 to 15, not 0 to 16"):
        pack_codes(np.array([0, 16]), 4)
    with pytest.raises(ValueError, match="not -1 to 2"):
        pack_codes(np.array([-1, 2]), 4)
    with pytest.raises(ValueError, match="3 4-bit codes in a row are not a multiple of 2"):
        pack_codes(np.zeros(3, np.uint8), 4)
    with pytest.raises(ValueError, match="4 bytes of 3-bit codes in a row are not a multiple of 3"):
        unpack_codes(np.zeros(4, np.uint8), 3)
    with pytest.raises(ValueError, match="a code has 0 bits"):
        unpack_codes(np.zeros(4, np.uint8), 0)
