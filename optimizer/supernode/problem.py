"""Data of one decision: how many cards serve one copy of a model together (6.7.4)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Goal = Literal[
    "tokens_per_s_per_card", "sessions_per_card", "user_rate", "cost_per_on_time_session"
]
#: Where lookup tables are; "none": the model has no tables.
TablePlace = Literal["none", "hbm", "host"]
Routing = Literal["expected", "balanced"]


@dataclass(frozen=True, slots=True)
class Line:
    """A time that grows with the sessions n of an attention group: start_s + n·s_per_session."""

    start_s: Fraction
    s_per_session: Fraction


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange that comes `times` times in a step.

    It takes the fastest of its algorithms; the lines of one are paths that work at the same time,
    so the slowest of them counts.
    """

    name: str
    times: int
    algorithms: tuple[tuple[Line, ...], ...]


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """`num_layers` layers of `num_experts` experts, of which every token chooses some.

    The experts of a layer are dealt to all cards of the supernode, on average num_experts / size
    each. Of them those are read that any token of the supernode chooses: by "expected"
    E·(1 - (1 - k/E)^m) of m tokens (6-8), by "balanced" as many as there are choices. What a card
    reads on average is rounded up to a thousandth of an expert where it is an expectation. A single
    token's choices lie on as many cards as they can, and the fullest card counts.
    """

    num_layers: int
    num_experts: int
    experts_per_token: int
    expert_bytes: int
    routing: Routing = "expected"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows that every step reads of tables: how many a session, and the paths they come over.

    Their addresses are known when a step begins. What a lookup takes longer than `hidden_share` of
    the step, the layers before the first with a table, is added to the step.
    """

    rows_per_session: int
    lines: tuple[Line, ...]
    hidden_share: Fraction


@dataclass(frozen=True, slots=True)
class Option:
    """One way to build supernodes, and what a card of one holds, reads and sends.

    `size` cards form one, in groups of `attention_tp` that share their sessions; n below counts the
    sessions of such a group. Bytes and FLOP are those of the fullest card. `alignment_cards` are
    left over where supernodes or groups do not line up with domains, 0 where they do. Options that
    are not `is_asked` are there for comparison only.
    """

    size: int
    tables: TablePlace
    attention_tp: int
    replicated_bytes: int
    expert_bytes: int
    table_bytes: int
    session_bytes: int
    read_bytes: int
    kv_read_bytes: Fraction
    flops: Fraction
    experts: tuple[ExpertReads, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    lookup: Lookup | None = None
    host_bytes: int = 0
    num_hosts: int = 1
    state_bytes: int = 0
    setup_s: Fraction = Fraction(0)
    alignment_cards: int = 0
    is_asked: bool = True

    @property
    def weight_bytes(self) -> int:
        """Weights on a card (6-14)."""
        return self.replicated_bytes + self.expert_bytes + self.table_bytes

    @property
    def key(self) -> tuple[int, str, int]:
        """What tells options apart."""
        return self.size, self.tables, self.attention_tp


@dataclass(frozen=True, slots=True)
class Demand:
    """`num_sessions` sessions that are there from the start, each of `new_tokens` steps."""

    name: str
    num_sessions: int
    new_tokens: int
    deadline_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class SupernodePlan:
    """The decision: cards of a supernode, where tables are, the split, sessions of a group."""

    size: int
    tables: TablePlace
    attention_tp: int
    sessions: int


@dataclass(frozen=True, slots=True)
class SupernodeProblem:
    """Choose an option and the sessions n >= 1 that each of its attention groups serves at a time.

    A step takes the longer of reading and computing, then its exchanges, then what of the lookup is
    not hidden. On a card, W + U + n·K must fit in `capacity_bytes` (6-14), tables on the host in
    `host_capacity_bytes`. All lanes (n of every group of the fleet) work at once. Where `demands`
    are to be on time (or cost is the goal) they take the sessions of the demand with the earliest
    deadline first, without deadline last, in the order given among equals; each lane that is free
    first takes the next session, at n sessions' step time; a session that would end too late is
    not taken. At least `min_on_time` must be taken.

    Goal "user_rate" asks for the tokens a second of a single session in a supernode: n is 1 and no
    other group has any. None stands for no limit.

    Raises ValueError without options, for options that come twice, and numbers out of range.
    """

    num_cards: int
    capacity_bytes: int
    workspace_bytes: int
    bandwidth_bytes_per_s: Fraction
    peak_flops_per_s: Fraction
    options: tuple[Option, ...]
    goal: Goal = "tokens_per_s_per_card"
    step_target_s: Fraction | None = None
    host_capacity_bytes: int | None = None
    max_state_bytes: int | None = None
    max_setup_s: Fraction | None = None
    lookups_must_hide: bool = False
    demands: tuple[Demand, ...] = ()
    min_on_time: int = 0
    price_per_card_hour: Fraction | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise ValueError("a supernode needs an option")
        if len({option.key for option in self.options}) != len(self.options):
            raise ValueError("two options are the same")
        if min(self.bandwidth_bytes_per_s, self.peak_flops_per_s) <= 0:
            raise ValueError("bandwidth and peak are above 0")
        if self.goal == "cost_per_on_time_session" and not self.demands:
            raise ValueError("a cost of sessions needs sessions")
        if self.goal == "user_rate" and self.demands:
            raise ValueError("the rate of a single user goes without sessions to be on time")
        for option in self.options:
            self._check(option)

    def _check(self, option: Option) -> None:
        if option.size < 1 or option.attention_tp < 1 or option.size % option.attention_tp:
            raise ValueError(f"groups of {option.attention_tp} do not divide {option.size} cards")
        if self.num_cards < 1 or self.num_cards % option.size:
            raise ValueError(f"supernodes of {option.size} do not divide {self.num_cards} cards")
        if option.session_bytes < 1:
            raise ValueError("a session holds at least 1 byte")
        if option.read_bytes < 0 or min(option.kv_read_bytes, option.flops) < 0:
            raise ValueError("bytes and FLOP are 0 or more")
        if not (option.read_bytes or option.kv_read_bytes or option.flops):
            raise ValueError("a step takes some time")
        if any(not e.algorithms or not all(e.algorithms) for e in option.exchanges):
            raise ValueError("an exchange has an algorithm, and that a path")

    def option(self, size: int, tables: str, attention_tp: int) -> Option | None:
        """Return the option of a plan; None where there is none."""
        key = (size, tables, attention_tp)
        return next((option for option in self.options if option.key == key), None)

    @property
    def is_timed(self) -> bool:
        """Whether sessions are followed to their end."""
        return bool(self.demands)
