"""The limits of the machine."""

from __future__ import annotations

from coreai_onnx.runtime.profile.peaks import Peaks, measured_peaks


def test_the_longer_of_operations_and_bytes_is_the_least_time() -> None:
    peaks = Peaks(flops=100.0, bandwidth=10.0)
    assert peaks.seconds(200.0, 10.0) == 2.0
    assert peaks.seconds(200.0, 50.0) == 5.0
    assert str(Peaks(5e10, 2e10)).startswith(
        "50.0 GFLOP/s (float32 product of 512 × 512), 20.0 GB/s"
    )


def test_measured_once() -> None:
    peaks = measured_peaks(1)
    assert 1e8 < peaks.flops < 1e14
    assert 1e7 < peaks.bandwidth < 1e13
    assert measured_peaks(1) is peaks
