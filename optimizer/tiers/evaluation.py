"""Exact account of a placement of data in tiers: bytes, the step's time (6-15), broken rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from optimizer.evaluation import Violation
from optimizer.tiers.problem import Data, Tier, TierPlan, TierProblem

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class TierStep:
    """The parts of a step's time, in s (6-15); those of paths in the order of the problem's paths.

    `total_s` is None where resumes leave a path no time for what a step needs of it.
    """

    loads_s: tuple[Fraction, ...]
    compute_s: Fraction
    #: Longest of loads and computing, over the balance.
    core_s: Fraction
    #: With communication and what is fixed, before anything that is waited for.
    even_s: Fraction
    window_s: Fraction
    #: Prefetched lookups of each path, and what the slowest needs beyond the window.
    prefetches_s: tuple[Fraction, ...]
    excess_s: Fraction
    #: Lookups that are not prefetched.
    lookups_s: Fraction
    #: Copies that are fetched.
    fetches_s: Fraction
    total_s: Fraction | None


@dataclass(frozen=True, slots=True)
class TierEvaluation:
    """Account of a placement: bytes in every tier, the step, what is paid, broken rules.

    `resume_shares` is the share of time in which each path carries resumes; `resumes_s` the time of
    each class's resume, and `random_reads_s` of each tier's random reads in a step.
    """

    used_bytes: tuple[int, ...]
    step: TierStep
    resume_shares: tuple[Fraction, ...]
    resumes_s: tuple[Fraction | None, ...]
    random_reads_s: tuple[Fraction, ...]
    price_per_hour: Fraction
    num_sessions: int
    num_cards: int
    tokens_per_step: int
    violations: tuple[Violation, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def user_rate(self) -> Fraction | None:
        """Tokens a second of each session; None where a step takes no time, or never ends."""
        return self.tokens_per_step / self.step.total_s if self.step.total_s else None

    def value(self, goal: str) -> Fraction | None:
        """Return what a goal comes to; None where it has no value."""
        if goal == "sessions":
            return Fraction(self.num_sessions)
        rate = self.user_rate
        if rate is None or goal == "user_rate":
            return rate
        if goal == "throughput_per_card":
            return rate * self.num_sessions / self.num_cards
        return rate * self.num_sessions / self.price_per_hour if self.price_per_hour else None


def evaluate_tiers(problem: TierProblem, plan: TierPlan) -> TierEvaluation:
    """Account for a placement and name every rule it breaks; never raises for a bad one.

    Data without a tier, and those in a tier that is not there, are violations and take no part.
    """
    return _Account(problem, plan).evaluation()


class _Account:
    """One placement being accounted for."""

    def __init__(self, problem: TierProblem, plan: TierPlan) -> None:
        self.problem, self.plan = problem, plan
        self.n = max(plan.num_sessions, 0)
        count = len(problem.classes)
        self.homes = [self._known(t) for t in (*plan.homes, *(None,) * count)[:count]]
        self.copies = [self._known(t) for t in (*plan.copies, *(None,) * count)[:count]]

    def _known(self, tier: int | None) -> Tier | None:
        is_known = tier is not None and 0 <= tier < len(self.problem.tiers)
        return self.problem.tiers[tier] if is_known and tier is not None else None

    def evaluation(self) -> TierEvaluation:
        problem, n = self.problem, self.n
        used = dict.fromkeys((tier.name for tier in problem.tiers), 0)
        shares = [ZERO] * len(problem.paths)
        random_s = dict.fromkeys(used, ZERO)
        resumes: list[Fraction | None] = []
        for data, home, copy in self._placed():
            for tier in (home, copy):
                if tier is not None:
                    used[tier.name] += data.bytes + n * data.bytes_per_session
            if home is None or not data.resume_bytes:
                resumes.append(None)
            else:
                shares[home.path] += data.resumes_per_s * data.resume_bytes / home.bytes_per_s
                resumes.append(home.round_trip_s + data.resume_bytes / home.bytes_per_s)
            if home is not None and home.max_reads_per_s is not None:
                random_s[home.name] += self._lookups(data) / home.max_reads_per_s
        step = self._step(shares)
        in_use = {
            tier.name for pair in zip(self.homes, self.copies, strict=True) for tier in pair if tier
        }
        price = problem.machine.price_per_hour + sum(
            (tier.price_per_hour for tier in problem.tiers if tier.name in in_use), ZERO
        )
        broken = [
            *self._check_places(),
            *self._check_capacity(used),
            *self._check_sessions(),
            *self._check_resumes(shares, resumes),
            *self._check_step(step),
        ]
        return TierEvaluation(
            used_bytes=tuple(used.values()),
            step=step,
            resume_shares=tuple(shares),
            resumes_s=tuple(resumes),
            random_reads_s=tuple(random_s.values()),
            price_per_hour=price,
            num_sessions=self.plan.num_sessions,
            num_cards=problem.machine.num_cards,
            tokens_per_step=problem.machine.tokens_per_step,
            violations=tuple(broken),
        )

    def _placed(self) -> Iterator[tuple[Data, Tier | None, Tier | None]]:
        yield from zip(self.problem.classes, self.homes, self.copies, strict=True)

    def _lookups(self, data: Data) -> int:
        return data.lookups + self.n * data.lookups_per_session

    def _step(self, shares: list[Fraction]) -> TierStep:
        """Return the time of a step (6-15); paths have it by what resumes leave."""
        machine, n, num_paths = self.problem.machine, self.n, len(self.problem.paths)
        loads, prefetches = [ZERO] * num_paths, [ZERO] * num_paths
        lookups_s = fetches_s = ZERO
        is_endless = False

        def on_path(tier: Tier, seconds: Fraction) -> Fraction:
            """Stretch time on a path that resumes share."""
            nonlocal is_endless
            left = 1 - shares[tier.path]
            if seconds and left <= 0:
                is_endless = True
                return seconds
            return seconds / left if seconds else seconds

        for data, home, copy in self._placed():
            if home is None:
                continue
            near = copy or home
            read = data.read_bytes + n * data.read_bytes_per_session
            written = n * data.write_bytes_per_session
            seconds = read / near.bytes_per_s + written / near.write_bytes_per_s
            loads[near.path] += on_path(near, seconds)
            if copy is not None:
                whole = Fraction(data.bytes + n * data.bytes_per_session)
                fetches_s += on_path(home, whole / home.bytes_per_s)
            num = self._lookups(data)
            if not num:
                continue
            transfer = on_path(home, num * data.lookup_bytes / home.bytes_per_s)
            seconds = home.round_trip_s + transfer
            if home.max_reads_per_s is not None:
                seconds += num / home.max_reads_per_s
            if data.is_prefetched:
                loads[home.path] += transfer
                prefetches[home.path] += seconds
            else:
                lookups_s += seconds
        flops = machine.fixed_flops + n * machine.flops_per_session
        compute_s = flops / machine.peak_flops_per_s if machine.peak_flops_per_s else ZERO
        core_s = max(compute_s, *loads) / machine.balance
        even_s = core_s + machine.communication_s + machine.fixed_s
        even_s += n * machine.communication_s_per_session
        window_s = machine.first_block_share * even_s
        excess_s = max(ZERO, max(prefetches) - window_s)
        total_s = even_s + excess_s + lookups_s + fetches_s
        return TierStep(
            loads_s=tuple(loads),
            compute_s=compute_s,
            core_s=core_s,
            even_s=even_s,
            window_s=window_s,
            prefetches_s=tuple(prefetches),
            excess_s=excess_s,
            lookups_s=lookups_s,
            fetches_s=fetches_s,
            total_s=None if is_endless else total_s,
        )

    def _check_places(self) -> Iterator[Violation]:
        """Every class has a home that it may have, and a copy only where one may be."""
        problem, plan = self.problem, self.plan
        for what, given in (("homes", plan.homes), ("copies", plan.copies)):
            off = abs(len(given) - len(problem.classes))
            if off:
                message = f"{len(given)} {what} for {len(problem.classes)} classes of data"
                yield Violation("class_count", "tiers", off, "classes", message)
        for c, (data, home, copy) in enumerate(self._placed()):
            where = f"class {data.name}"
            if home is None:
                yield Violation("placed", where, 1, "classes", f"{where} lies in no tier")
                continue
            if plan.homes[c] not in data.tiers:
                message = f"{where} lies in {home.name}, which it may not"
                yield Violation("allowed", where, 1, "classes", message)
            if data.is_written and not home.is_writable:
                message = f"{where} is written, and {home.name} cannot be"
                size = max(data.bytes + self.n * data.bytes_per_session, 1)
                yield Violation("read_only", where, size, "bytes", message)
            if copy is not None and (copy is home or not data.may_copy or not copy.is_writable):
                why = "may have none" if not data.may_copy else "cannot lie there"
                message = f"{where} has a copy in {copy.name}; it {why}"
                yield Violation("copy", where, 1, "classes", message)

    def _check_capacity(self, used: dict[str, int]) -> Iterator[Violation]:
        """No tier holds more than it can."""
        for tier in self.problem.tiers:
            over = used[tier.name] - tier.capacity_bytes
            if over <= 0:
                continue
            where = f"tier {tier.name}"
            if tier.bytes_per_mm2 is None:
                message = f"{where} holds {used[tier.name]} of {tier.capacity_bytes} bytes"
                yield Violation("capacity", where, over, "bytes", message)
            else:
                area = Fraction(used[tier.name], tier.bytes_per_mm2)
                most = tier.capacity_bytes // tier.bytes_per_mm2
                message = f"{where} needs {float(area):,.6g} of {most:,} mm2"
                amount = Fraction(over, tier.bytes_per_mm2)
                yield Violation("capacity", where, amount, "mm2", message)

    def _check_sessions(self) -> Iterator[Violation]:
        """Sessions are as many as are wanted."""
        n, least, most = (
            self.plan.num_sessions,
            self.problem.min_sessions,
            self.problem.max_sessions,
        )
        if n < least:
            message = f"{n} sessions, and {least} are wanted at least"
            yield Violation("min_sessions", "sessions", least - n, "sessions", message)
        if n > most:
            message = f"{n} sessions, and {most} are wanted at most"
            yield Violation("max_sessions", "sessions", n - most, "sessions", message)

    def _check_resumes(
        self, shares: list[Fraction], resumes: list[Fraction | None]
    ) -> Iterator[Violation]:
        """Idle sessions resume no faster than they are read, and each in time (6.6.3)."""
        for name, share in zip(self.problem.paths, shares, strict=True):
            if share > 1:
                message = f"path {name}: resumes arrive {float(share):.6g} times as fast as read"
                yield Violation("queue", f"path {name}", share - 1, "of all time", message)
        for data, seconds in zip(self.problem.classes, resumes, strict=True):
            most = data.max_resume_s
            if seconds is not None and most is not None and seconds > most:
                where = f"class {data.name}"
                message = f"{where}: a resume takes {float(seconds):.6g} s, not {float(most):.6g} s"
                yield Violation("resume", where, seconds - most, "s", message)

    def _check_step(self, step: TierStep) -> Iterator[Violation]:
        """A step ends, and in time."""
        target_s = self.problem.step_target_s
        if step.total_s is None:
            message = "resumes leave a path no time for what a step needs of it"
            yield Violation("no_time_left", "step", 1, "paths", message)
        elif target_s is not None and step.total_s > target_s:
            message = f"a step takes {float(step.total_s):.6g} s, not {float(target_s):.6g} s"
            yield Violation("step_target", "step", step.total_s - target_s, "s", message)
