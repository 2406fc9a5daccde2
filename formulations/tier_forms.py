"""What every place of every class adds to memory and to a step's time, in exact linear forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from optimizer.tiers.problem import Place, TierProblem

#: A number, and what each session adds to it.
Form = tuple[Fraction, Fraction]
NOTHING: Form = (Fraction(0), Fraction(0))

#: Places of some classes; those of others are open.
Chosen = Mapping[int, Place]


def plus(one: Form, other: Form, times: Fraction | int = 1) -> Form:
    """Return a form and a multiple of another."""
    return one[0] + times * other[0], one[1] + times * other[1]


@dataclass(slots=True)
class Takes:
    """What a class takes in one place.

    Of time that goes over paths: `streams` overlap on their path, `ahead` are bytes of prefetched
    lookups, `waits` hold up the step. `ahead_s` and `waits_s` are round trips and random reads.
    """

    memory: dict[int, Form] = field(default_factory=dict)
    streams: dict[int, Form] = field(default_factory=dict)
    ahead: dict[int, Form] = field(default_factory=dict)
    ahead_s: dict[int, Form] = field(default_factory=dict)
    waits: dict[int, Form] = field(default_factory=dict)
    waits_s: Form = NOTHING
    #: The path that its resumes use, and their share of its time.
    resumes: tuple[int, Fraction] | None = None
    is_resumed_in_time: bool = True


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A lower limit of a step's time; the step is as long as the largest.

    `busiest` is the path (None: computing) taken for the slowest, `ahead` that of the prefetched
    lookups which are not hidden, None where all are.
    """

    busiest: int | None
    ahead: int | None


class TierForms:
    """Linear forms of a problem, and the exact best of given places."""

    def __init__(self, problem: TierProblem) -> None:
        self.problem = problem
        classes = range(len(problem.classes))
        self.takes = {
            (c, place): self._takes(c, place) for c in classes for place in problem.places(c)
        }
        self.busy = [
            None,
            *sorted({p for t in self.takes.values() for p in (*t.streams, *t.ahead)}),
        ]
        lookups = sorted({p for t in self.takes.values() for p in t.ahead_s})
        self.rows = [TimeRow(q, p) for q in self.busy for p in (None, *lookups)]

    def _takes(self, c: int, place: Place) -> Takes:
        problem, (home_tier, copy_tier) = self.problem, place
        data, home = problem.classes[c], problem.tiers[home_tier]
        near = home if copy_tier is None else problem.tiers[copy_tier]
        size = Fraction(data.bytes), Fraction(data.bytes_per_session)
        found = Takes(memory={home_tier: size})
        stream = plus(
            (data.read_bytes / near.bytes_per_s, data.read_bytes_per_session / near.bytes_per_s),
            (Fraction(0), data.write_bytes_per_session / near.write_bytes_per_s),
        )
        if any(stream):
            found.streams[near.path] = stream
        if copy_tier is not None:
            found.memory[copy_tier] = size
            found.waits[home.path] = size[0] / home.bytes_per_s, size[1] / home.bytes_per_s
        if data.lookups or data.lookups_per_session:
            num = Fraction(data.lookups), Fraction(data.lookups_per_session)
            transfer = plus(NOTHING, num, data.lookup_bytes / home.bytes_per_s)
            rest = (
                plus((home.round_trip_s, Fraction(0)), num, 1 / home.max_reads_per_s)
                if (home.max_reads_per_s)
                else (home.round_trip_s, Fraction(0))
            )
            if data.is_prefetched:
                found.ahead[home.path], found.ahead_s[home.path] = transfer, rest
            else:
                found.waits[home.path] = plus(found.waits.get(home.path, NOTHING), transfer)
                found.waits_s = rest
        if data.resume_bytes:
            seconds = data.resume_bytes / home.bytes_per_s
            found.resumes = home.path, data.resumes_per_s * seconds
            most = data.max_resume_s
            found.is_resumed_in_time = most is None or home.round_trip_s + seconds <= most
        return found

    def constant(self, row: TimeRow) -> Form:
        """Return the part of a row that no place changes."""
        machine = self.problem.machine
        form = (machine.communication_s + machine.fixed_s, machine.communication_s_per_session)
        if row.busiest is None and machine.peak_flops_per_s is not None:
            flops = machine.fixed_flops, machine.flops_per_session
            form = plus(form, flops, 1 / (machine.peak_flops_per_s * machine.balance))
        return plus(NOTHING, form, self._kept(row))

    def _kept(self, row: TimeRow) -> Fraction | int:
        """Return the share of the even step that counts beside what is not hidden."""
        return 1 if row.ahead is None else 1 - self.problem.machine.first_block_share

    def time(self, row: TimeRow, c: int, place: Place, stretch: Mapping[int, Fraction]) -> Form:
        """Return what a place adds to a row, where paths are stretched by resumes."""
        takes, form = self.takes[c, place], self.takes[c, place].waits_s
        for path, part in takes.waits.items():
            form = plus(form, part, stretch.get(path, 1))
        if row.busiest is not None:
            times = self._kept(row) / self.problem.machine.balance
            times *= stretch.get(row.busiest, Fraction(1))
            for parts in (takes.streams, takes.ahead):
                form = plus(form, parts.get(row.busiest, NOTHING), times)
        if row.ahead is not None and row.ahead in takes.ahead_s:
            form = plus(form, takes.ahead_s[row.ahead])
            form = plus(form, takes.ahead[row.ahead], stretch.get(row.ahead, 1))
        return form

    def stretch(self, chosen: Chosen) -> dict[int, Fraction] | None:
        """Return by how much resumes stretch paths; None where they leave too little time."""
        shares: dict[int, Fraction] = {}
        for c, place in chosen.items():
            takes = self.takes[c, place]
            if not takes.is_resumed_in_time:
                return None
            if takes.resumes is not None:
                path, share = takes.resumes
                shares[path] = shares.get(path, Fraction(0)) + share
        for path, share in shares.items():
            is_needed = any(
                any(parts.get(path, NOTHING))
                for c, place in chosen.items()
                for parts in (
                    self.takes[c, place].streams,
                    self.takes[c, place].ahead,
                    self.takes[c, place].waits,
                )
            )
            if share > 1 or (share == 1 and is_needed):
                return None
        return {path: 1 / (1 - share) for path, share in shares.items() if share < 1}

    def times(self, chosen: Chosen) -> Iterator[Form]:
        """Yield every row's form of given places; they leave paths some time."""
        stretch = self.stretch(chosen)
        assert stretch is not None
        for row in self.rows:
            form = self.constant(row)
            for c, place in chosen.items():
                form = plus(form, self.time(row, c, place, stretch))
            yield form

    def most_sessions(self, chosen: Chosen) -> int | None:
        """Return the most sessions with given places, all others taking nothing; None if too few.

        All rules are of the form fixed + n · per session <= limit.
        """
        problem = self.problem
        if self.stretch(chosen) is None:
            return None
        limits: list[tuple[Form, Fraction]] = []
        for t, tier in enumerate(problem.tiers):
            form = NOTHING
            for c, place in chosen.items():
                form = plus(form, self.takes[c, place].memory.get(t, NOTHING))
            limits.append((form, Fraction(tier.capacity_bytes)))
        if problem.step_target_s is not None:
            limits += [(form, problem.step_target_s) for form in self.times(chosen)]
        most = problem.max_sessions
        for (fixed, per_session), limit in limits:
            if per_session:
                most = min(most, math.floor((limit - fixed) / per_session))
            elif fixed > limit:
                return None
        return most if most >= problem.min_sessions else None

    def price(self, chosen: Chosen) -> Fraction:
        """Return what throughput is divided by: cards, or the price an hour of what is used."""
        machine = self.problem.machine
        if self.problem.goal != "throughput_per_price":
            return Fraction(machine.num_cards)
        used = {t for c, place in chosen.items() for t in self.takes[c, place].memory}
        return sum((self.problem.tiers[t].price_per_hour for t in used), machine.price_per_hour)

    def best(self, chosen: Chosen) -> tuple[int, Fraction | None] | None:
        """Return sessions and value of given places; None: nothing legal, value None: no limit.

        Places that are open take nothing, so no choice of them is better.
        """
        problem, most = self.problem, self.most_sessions(chosen)
        if most is None:
            return None
        if problem.goal == "sessions":
            return most, Fraction(most)
        num = problem.min_sessions if problem.goal == "user_rate" else most
        tokens = problem.machine.tokens_per_step
        step_s = max(fixed + num * per_session for fixed, per_session in self.times(chosen))
        if not step_s:
            return num, None
        if problem.goal == "user_rate":
            return num, tokens / step_s
        return num, tokens * num / (step_s * self.price(chosen))
