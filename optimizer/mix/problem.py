"""Data of one decision: which mix of unlike accelerators serves a workload at the least price.

The problem was published as Mélange: requests fall into buckets by size, and an accelerator of each
kind sustains so many requests of each bucket a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class MixKind:
    """A kind of accelerator: its price, how many may be had, and what one sustains.

    `max_requests_per_s` holds for every bucket the requests a second that one accelerator sustains
    when it gets that bucket alone; 0 says that it cannot serve it.
    """

    name: str
    price_per_hour: Fraction
    #: None stands for as many as are wanted.
    max_count: int | None
    max_requests_per_s: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests of like sizes, and how many of them come in a second."""

    name: str
    requests_per_s: Fraction


@dataclass(frozen=True, slots=True)
class Mix:
    """Accelerators of every kind, and for every bucket the pieces that each kind serves."""

    counts: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class MixProblem:
    """Serve all buckets by accelerators that cost least an hour together.

    Every bucket is split into equal pieces. A piece goes wholly to one kind, and takes the share of
    its time that the piece's requests are of those that one accelerator sustains. A kind needs as
    many accelerators as these shares, its load, come to, rounded up.

    Raises ValueError without kinds, buckets or pieces, for names that come twice, numbers below 0,
    and rates that are not one for each bucket.
    """

    kinds: tuple[MixKind, ...]
    buckets: tuple[Bucket, ...]
    #: Equal pieces that every bucket is split into.
    pieces_per_bucket: int

    def __post_init__(self) -> None:
        if not self.kinds or not self.buckets or self.pieces_per_bucket < 1:
            raise ValueError("a mix needs an accelerator, a bucket and a piece")
        for what, names in (
            ("accelerators", [kind.name for kind in self.kinds]),
            ("buckets", [bucket.name for bucket in self.buckets]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} need names of their own")
        if any(bucket.requests_per_s < 0 for bucket in self.buckets):
            raise ValueError("requests of a bucket are 0 or more a second")
        for kind in self.kinds:
            self._check_kind(kind)

    def _check_kind(self, kind: MixKind) -> None:
        if kind.price_per_hour < 0 or (kind.max_count is not None and kind.max_count < 0):
            raise ValueError(f"accelerator {kind.name!r}: price and count are 0 or more")
        if len(kind.max_requests_per_s) != len(self.buckets):
            raise ValueError(
                f"accelerator {kind.name!r} has rates for {len(kind.max_requests_per_s)} of "
                f"{len(self.buckets)} buckets"
            )
        if any(rate < 0 for rate in kind.max_requests_per_s):
            raise ValueError(f"accelerator {kind.name!r}: rates are 0 or more")

    def can_serve(self, bucket: int, kind: int) -> bool:
        """Whether a kind serves a bucket; one without requests is served by all."""
        rate = self.kinds[kind].max_requests_per_s[bucket]
        return rate > 0 or not self.buckets[bucket].requests_per_s

    def piece_load(self, bucket: int, kind: int) -> Fraction:
        """Accelerators of a kind that one piece of a bucket keeps busy; the kind can serve it."""
        requests_per_s = self.buckets[bucket].requests_per_s
        if not requests_per_s:
            return Fraction(0)
        rate = self.kinds[kind].max_requests_per_s[bucket]
        return requests_per_s / (self.pieces_per_bucket * rate)
