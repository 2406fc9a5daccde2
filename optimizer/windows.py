"""Reads from memory that is far: what reads under way allow, and when to fetch once (6-12)."""

from __future__ import annotations

import math
from fractions import Fraction

from instances.access import Access


def window_bytes_per_s(in_flight: int, transaction_bytes: int, round_trip_s: Fraction) -> Fraction:
    """Return u·q/L, the most that reads under way bring (6-12). Raises ValueError for zeros."""
    if in_flight <= 0 or transaction_bytes <= 0 or round_trip_s <= 0:
        raise ValueError("reads in flight, their bytes and their round trip must be above 0")
    return in_flight * transaction_bytes / Fraction(round_trip_s)


def usable_bytes_per_s(access: Access) -> Fraction:
    """Return min(B_path, u·q/L), bytes a second (6-12)."""
    path = Fraction(access.bandwidth_bytes_per_s)
    if access.in_flight is None or access.transaction_bytes is None:
        return path
    window = window_bytes_per_s(access.in_flight, access.transaction_bytes, access.round_trip_s)
    return min(path, window)


def fewest_in_flight(
    bandwidth_bytes_per_s: Fraction | int, transaction_bytes: int, round_trip_s: Fraction
) -> int:
    """Return the reads under way that fill a path: ⌈B·L/q⌉ (6.6.2)."""
    return max(math.ceil(bandwidth_bytes_per_s * Fraction(round_trip_s) / transaction_bytes), 1)


def read_s(num_bytes: int, bytes_per_s: Fraction, times: int = 1) -> Fraction:
    """Return the seconds of reading `num_bytes` so many times, one after another (6.6.3)."""
    return times * Fraction(num_bytes) / bytes_per_s


def fetched_once_s(
    num_bytes: int, far_bytes_per_s: Fraction, near_bytes_per_s: Fraction, times: int
) -> Fraction:
    """Return the seconds of fetching a snapshot once and reading the copy `times` times (6.6.3)."""
    return read_s(num_bytes, far_bytes_per_s) + read_s(num_bytes, near_bytes_per_s, times)
