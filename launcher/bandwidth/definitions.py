"""Sizes, times and bandwidths of an all-reduce, as nccl-tests define them.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, "Bandwidth": algbw = S/t, and for
an all-reduce of n processes busbw = algbw * 2(n-1)/n, which "we can compare with the hardware peak bandwidth,
independently of the number of ranks used".
"""

from __future__ import annotations

from launcher.core.frozen import frozen

ELEMENT_BYTES = 4
"""Size of a float32; the all-reduce sums float32 numbers."""
UNITS = ("", "K", "M", "G", "T")


@frozen
class Sample:
    """Measurement of one size.

    Attributes:
        size_bytes: Bytes that each process contributes, and gets.
        time_s: Seconds of one all-reduce, as the mean over iterations and processes.
        process_count: Number of processes.
        iterations: Number of iterations that were timed.
        is_right: Whether the sum was correct.
    """

    size_bytes: int
    time_s: float
    process_count: int
    iterations: int = 1
    is_right: bool = True

    def __post_init__(self) -> None:
        if self.size_bytes <= 0 or self.time_s <= 0 or self.process_count < 1:
            raise ValueError(f"no measurement: {self}")

    @property
    def algorithm_gbps(self) -> float:
        """Size divided by time, in Gb/s (10^9 bits per second)."""
        return self.size_bytes / self.time_s * 8e-9

    @property
    def bus_gbps(self) -> float:
        """Traffic on the narrowest link in Gb/s, comparable with the link's rate; 0 for one process."""
        return self.algorithm_gbps * 2 * (self.process_count - 1) / self.process_count


def list_sizes(min_bytes: int, max_bytes: int, factor: int) -> tuple[int, ...]:
    """Return the sizes between two limits, each ``factor`` times the one before, as whole elements."""
    sizes = []
    size = min_bytes
    while size <= max_bytes:
        sizes.append(size // ELEMENT_BYTES * ELEMENT_BYTES)
        size *= factor
    return tuple(sizes)


def render_size(size_bytes: int) -> str:
    """Return e.g. ``64 KiB``, in up to four digits; bytes below 1 KiB."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.4g} {UNITS[unit]}iB" if unit else f"{size_bytes} B"


def render_time(time_s: float) -> str:
    """Return e.g. ``43.1 µs``, ``12.5 ms``, ``2.1 s``, in three digits."""
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if time_s * scale >= 1:
            return f"{time_s * scale:.3g} {unit}"
    return f"{time_s * 1e6:.3g} µs"


def render_gbps(gbps: float) -> str:
    """Return e.g. ``3,200``, ``391``, ``18.5``, ``0.0093``: the digits that a measurement justifies."""
    return f"{gbps:,.0f}" if gbps >= 100 else f"{gbps:.1f}" if gbps >= 1 else f"{gbps:.2g}"
