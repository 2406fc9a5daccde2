"""Random small decisions of tiers for tests: seeded, with limits that bind and some not kept."""

from __future__ import annotations

import random
from fractions import Fraction

from optimizer.tiers.problem import Data, Machine, Tier, TierGoal, TierProblem

GOALS: tuple[TierGoal, ...] = (
    "sessions",
    "user_rate",
    "throughput_per_card",
    "throughput_per_price",
)

_SPEEDS = (1, 2, 3, 5, 10, 7, 100)
_KINDS = ("weights", "kv", "kv", "table", "table", "idle", "snapshot", "snapshot")


def small_tiers(seed: int, goal: TierGoal | None = None) -> TierProblem:
    """Return two to four tiers on one to three paths, and two to four classes of data."""
    rng = random.Random(seed)
    num_tiers = rng.randint(2, 4)
    paths = tuple(f"p{p}" for p in range(rng.randint(1, min(num_tiers, 3))))
    tiers = tuple(_tier(rng, t, len(paths)) for t in range(num_tiers))
    classes = tuple(_data(rng, c, num_tiers) for c in range(rng.randint(2, 4)))
    least = rng.choice((1, 1, 1, 2, 3))
    chosen = rng.choice(GOALS)
    return TierProblem(
        machine=_machine(rng),
        paths=paths,
        tiers=tiers,
        classes=classes,
        goal=chosen if goal is None else goal,
        min_sessions=least,
        max_sessions=least + rng.choice((0, 4, 15, 30, 30)),
        step_target_s=rng.choice(
            (None, None, None, *(Fraction(n, 2) for n in (5, 12, 25, 50, 80)))
        ),
    )


def _machine(rng: random.Random) -> Machine:
    return Machine(
        num_cards=rng.choice((1, 2, 3)),
        tokens_per_step=rng.choice((1, 1, 3)),
        peak_flops_per_s=rng.choice((None, Fraction(10), Fraction(7))),
        fixed_flops=Fraction(rng.choice((0, 5))),
        flops_per_session=Fraction(rng.choice((0, 1, 3))),
        communication_s=Fraction(rng.choice((1, 2)), 4),
        communication_s_per_session=Fraction(rng.choice((0, 0, 1)), 8),
        fixed_s=Fraction(rng.choice((0, 0, 1)), 3),
        balance=Fraction(rng.choice((10, 10, 9, 8)), 10),
        first_block_share=Fraction(1, rng.choice((2, 3, 8, 40))),
        price_per_hour=Fraction(rng.choice((1, 2, 7)), rng.choice((1, 2, 3))),
    )


def _tier(rng: random.Random, number: int, num_paths: int) -> Tier:
    speed = Fraction(rng.choice(_SPEEDS), rng.choice((1, 1, 1, 3)))
    is_writable = rng.random() < 0.85
    return Tier(
        name=f"t{number}",
        capacity_bytes=rng.choice((0, 8, 15, 30, 60, 90)),
        bytes_per_s=speed,
        path=number if number < num_paths else rng.randrange(num_paths),
        write_bytes_per_s=rng.choice((speed, speed / 2)),
        round_trip_s=Fraction(rng.choice((0, 1, 5)), rng.choice((4, 10))),
        max_reads_per_s=rng.choice((None, None, Fraction(4), Fraction(20))),
        price_per_hour=Fraction(rng.choice((0, 0, 1, 3)), 2),
        is_writable=is_writable,
        bytes_per_mm2=None if is_writable else rng.choice((None, 1, 3)),
    )


def _data(rng: random.Random, number: int, num_tiers: int) -> Data:
    name, kind = f"c{number}", rng.choice(_KINDS)
    places = tuple(t for t in range(num_tiers) if rng.random() < 0.85) or (0,)
    size = rng.choice((0, 1, 2, 3, 5, 8))
    if kind == "weights":
        read = Fraction(rng.choice((0, size, 2 * size)))
        return Data(name, places, size, read_bytes=read)
    if kind == "kv":
        each = rng.choice((0, 1, 1, 2))
        read = Fraction(rng.choice((0, each, 2 * each)))
        written = Fraction(rng.choice((0, 0, 1)), 4)
        return Data(
            name,
            places,
            rng.choice((0, size)),
            each,
            read_bytes_per_session=read,
            write_bytes_per_session=written,
            is_written=True,
        )
    if kind == "table":
        num, each = rng.choice(((0, 1), (2, 0), (1, 2)))
        return Data(
            name,
            places,
            size,
            read_bytes=Fraction(rng.choice((0, 1))),
            lookups=num,
            lookups_per_session=each,
            lookup_bytes=rng.choice((1, 2)),
            is_prefetched=rng.random() < 0.7,
        )
    if kind == "idle":
        return Data(
            name,
            places,
            size,
            rng.choice((0, 0, 1)),
            is_written=True,
            resumes_per_s=Fraction(rng.choice((1, 2, 4, 8)), rng.choice((2, 4, 8))),
            resume_bytes=rng.choice((1, 2, 3)),
            max_resume_s=rng.choice((None, None, Fraction(1, 2), Fraction(2))),
        )
    each, reads = rng.choice((0, 0, 1)), rng.choice((0, 2, 5, 20))
    return Data(
        name,
        places if rng.random() < 0.4 else (rng.randrange(num_tiers),),
        size,
        each,
        read_bytes=Fraction(reads * size),
        read_bytes_per_session=Fraction(reads * each),
        may_copy=True,
    )
