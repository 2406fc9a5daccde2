"""Parts of the documents of decision "tiers": which data lie where, and the account of it (6.7.4).

Fields that end in `_exact` are fractions beside the same number as a float.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from optimizer.result import Document


class _Plan(Document):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TierPlaceDocument(_Plan):
    """The tier of a class of data, and that of its copy: fetched once a step and read there."""

    name: str
    tier: str
    copy_tier: str | None = None


class TierPlanDocument(_Plan):
    """Where all classes of data lie, and the number of sessions."""

    classes: list[TierPlaceDocument]
    num_sessions: int = Field(ge=0)


class TierThresholdDocument(Document):
    """How slow a tier may be before a step takes longer, all else unchanged.

    The step is no longer down to `keeps_bytes_per_s`, and longer at `loses_bytes_per_s`, the next
    lower whole number; null where no bandwidth matters. `longest_round_trip` is null where no round
    trip is waited for. Both sides were evaluated.
    """

    keeps_bytes_per_s: int | None
    loses_bytes_per_s: int | None
    longest_round_trip_s: float | None
    longest_round_trip_exact: str | None


class TierDocument(Document):
    """One tier: what lies there, and what a step's random reads take.

    `area_mm2` is what data take of ROM. `price_per_hour` is 0 where nothing lies.
    """

    name: str
    kind: str
    path: str
    capacity_bytes: int
    used_bytes: int
    area_mm2: float | None
    usable_bytes_per_s: float
    usable_bytes_per_s_exact: str
    random_reads_s: float
    random_reads_exact: str
    price_per_hour: float
    price_per_hour_exact: str
    threshold: TierThresholdDocument | None


class TierClassDocument(Document):
    """One class of data: where it lies, how much it is, and what a resume takes."""

    name: str
    kind: str
    tier: str | None
    copy_tier: str | None
    bytes: int
    resume_s: float | None
    resume_exact: str | None


class TierPathDocument(Document):
    """One path: what a step reads over it, and the share of all time in which resumes use it."""

    name: str
    load_s: float
    load_exact: str
    prefetch_s: float
    prefetch_exact: str
    resume_share: float
    resume_share_exact: str


class TierStepDocument(Document):
    """The parts of a step (6-15), in s.

    Reading and computing overlap, and the longest over the balance is `core`. `even` adds
    communication and what is fixed. `excess` is what prefetched lookups take beyond the window of
    the first block, `lookups` those that are not prefetched, `fetches` copies that are fetched.
    """

    compute_exact: str
    core_s: float
    core_exact: str
    even_s: float
    even_exact: str
    window_s: float
    window_exact: str
    excess_s: float
    excess_exact: str
    lookups_s: float
    lookups_exact: str
    fetches_s: float
    fetches_exact: str
    total_s: float | None
    total_exact: str | None


class TierLookupDocument(Document):
    """At which user rate prefetched lookups of a class stop being hidden, all else as it may be.

    One round trip alone is hidden while a step takes `round_trip_step` or longer, the whole of all
    lookups on its path while it takes `whole_step`, with the fewest sessions that are wanted. The
    rates are the steps' inverses. `speed_up` is how much faster than now a step of these sessions
    is when the round trip stops being hidden. Both sides were evaluated.
    """

    name: str
    tier: str
    step_s: float
    step_exact: str
    window_s: float
    window_exact: str
    round_trip_step_s: float
    round_trip_step_exact: str
    round_trip_user_rate: float | None
    round_trip_user_rate_exact: str | None
    whole_step_s: float
    whole_step_exact: str
    whole_user_rate: float
    whole_user_rate_exact: str
    speed_up: float | None


class TierAlternativeDocument(Document):
    """What comes of one class in another place, all others staying: why it is not there.

    `value` is the goal's with the best number of sessions; null: nothing legal. `reason` is
    "capacity" where memory does not hold as many sessions, "speed" where a step takes longer,
    "price" where only that is higher, "none" where nothing is worse, "rules" otherwise.
    """

    name: str
    tier: str
    copy_tier: str | None
    value: float | None
    value_exact: str | None
    num_sessions: int | None
    reason: Literal["capacity", "speed", "price", "rules", "none"]
    message: str


class TierAccountDocument(Document):
    """The evaluator's account of tiers.

    `user_rate` is of each session with all sessions, `alone_user_rate` with the fewest wanted, in
    tokens a second.
    """

    machine: str
    num_cards: int
    num_sessions: int
    goal: str
    step: TierStepDocument
    user_rate: float | None
    user_rate_exact: str | None
    alone_user_rate: float | None
    alone_user_rate_exact: str | None
    throughput_per_card: float | None
    throughput_per_card_exact: str | None
    price_per_hour: float
    price_per_hour_exact: str
    tiers: list[TierDocument]
    classes: list[TierClassDocument]
    paths: list[TierPathDocument]
    lookups: list[TierLookupDocument]
    alternatives: list[TierAlternativeDocument]
