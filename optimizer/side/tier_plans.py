"""Documents of placements in tiers: the account, thresholds, and why other places lost (6.7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from instances.errors import InputError
from instances.tiers import TierDecision
from optimizer.plan_document import as_float, both
from optimizer.side.tier_accounts import (
    TierAccountDocument,
    TierAlternativeDocument,
    TierClassDocument,
    TierDocument,
    TierLookupDocument,
    TierPathDocument,
    TierPlanDocument,
    TierStepDocument,
    TierThresholdDocument,
)
from optimizer.tiers.evaluation import TierEvaluation, TierStep, evaluate_tiers
from optimizer.tiers.problem import Place, TierPlan, TierProblem
from optimizer.tiers.search import best_sessions, moves
from optimizer.tiers.thresholds import LookupThreshold, lookup_thresholds, tier_thresholds
from optimizer.words import plural

Reason = Literal["capacity", "speed", "price", "rules", "none"]

#: Other places of this many classes and tiers are evaluated; more are left out.
MAX_ALTERNATIVES = 200

#: Steps that differ by less count as equally long where it is told why a place lost.
MARGIN = Fraction(1, 100)

_RULE_WORDS = {
    "capacity": "nothing fits",
    "step_target": "a step takes too long",
    "no_time_left": "resumes leave a step no time",
    "queue": "resumes come faster than they are read",
    "resume": "a resume takes too long",
}

_GOAL_WORDS = {
    "user_rate": "tokens/s for each session",
    "throughput_per_card": "tokens/s per card",
    "throughput_per_price": "tokens/s per price an hour",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One class in another place, with the best number of sessions, and what is worse about it."""

    data: int
    place: Place
    value: Fraction | None
    num_sessions: int | None
    reason: Reason
    #: Whether a step of its own sessions takes no longer than the plan's would, within 1%.
    is_as_fast: bool
    #: Rules that it breaks even with the fewest sessions.
    rules: tuple[str, ...] = ()


def value_words(goal: str, value: Fraction) -> str:
    """Write a goal's value for people."""
    if goal == "sessions":
        return plural(int(value), "session")
    return f"{float(value):,.6g} {_GOAL_WORDS[goal]}"


def alternatives(problem: TierProblem, plan: TierPlan) -> list[Alternative]:
    """Return every plan that differs in the place of one class, beside a legal plan."""
    here, found = evaluate_tiers(problem, plan), []
    for number, (c, other) in enumerate(moves(problem, plan)):
        if number == MAX_ALTERNATIVES:
            break
        home = other.homes[c]
        assert home is not None
        same, best = evaluate_tiers(problem, other), best_sessions(problem, other)
        judged = evaluate_tiers(problem, best)
        value = judged.value(problem.goal) if judged.is_feasible else None
        as_many = evaluate_tiers(problem, replace(plan, num_sessions=best.num_sessions))
        found.append(
            Alternative(
                data=c,
                place=(home, other.copies[c]),
                value=value,
                num_sessions=best.num_sessions if judged.is_feasible else None,
                reason=_reason(here, same),
                is_as_fast=not _is_slower(judged, as_many, MARGIN),
                rules=tuple(dict.fromkeys(v.rule for v in judged.violations)),
            )
        )
    return found


def _is_slower(one: TierEvaluation, other: TierEvaluation, margin: Fraction = Fraction(0)) -> bool:
    """Whether one's step is longer than another's, by more than a share of that."""
    if one.step.total_s is None or other.step.total_s is None:
        return one.step.total_s is None
    return one.step.total_s > other.step.total_s * (1 + margin)


def _reason(here: TierEvaluation, same: TierEvaluation) -> Reason:
    """Return what is worse with as many sessions."""
    rules = {v.rule for v in same.violations}
    if "capacity" in rules:
        return "capacity"
    if rules & {"step_target", "no_time_left", "queue", "resume"}:
        return "speed"
    if rules:
        return "rules"
    if _is_slower(same, here):
        return "speed"
    return "price" if same.price_per_hour > here.price_per_hour else "none"


class TierWords:
    """A plan and what is said of it: its evaluation, other places, sentences about a legal one."""

    def __init__(self, section: TierDecision, problem: TierProblem, plan: TierPlan) -> None:
        self.section, self.problem, self.plan = section, problem, plan
        self.judged = evaluate_tiers(problem, plan)

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """Every plan that differs in one place; none beside a plan that is not legal."""
        return alternatives(self.problem, self.plan) if self.judged.is_feasible else []

    def sentence(self) -> str:
        """Return what lies where, and why what is read fastest does not hold the rest."""
        goal = self.problem.goal
        value = self.judged.value(goal)
        text = "" if value is None else f"{value_words(goal, value)}: "
        groups: dict[int, list[str]] = {}
        for c, home in enumerate(self.plan.homes):
            assert home is not None
            name, copy = self.problem.classes[c].name, self.plan.copies[c]
            if copy is not None:
                name += f" (fetched once a step into {self.problem.tiers[copy].name})"
            groups.setdefault(home, []).append(name)
        parts = [f"{', '.join(names)} in {self.name(t)}" for t, names in sorted(groups.items())]
        return "; ".join([text + parts[0], *parts[1:], *self._why()])

    def name(self, tier: int) -> str:
        """Name of a tier."""
        return self.problem.tiers[tier].name

    def _why(self) -> Iterator[str]:
        """Yield what became of classes in the fastest other tier, where that is worse."""
        tiers = self.problem.tiers
        best: dict[int, Alternative] = {}
        for other in self.alternatives:
            home = self.plan.homes[other.data]
            assert home is not None
            if other.place[1] is not None or other.reason == "none":
                continue
            if other.reason == "speed" and other.is_as_fast:
                continue
            speed = tiers[other.place[0]].bytes_per_s
            known = best.get(other.data)
            if speed > tiers[home].bytes_per_s and (
                known is None or speed > tiers[known.place[0]].bytes_per_s
            ):
                best[other.data] = other
        for other in list(best.values())[:2]:
            yield self.message(other)

    def message(self, other: Alternative) -> str:
        """Return what comes of a class in another place."""
        name, (home, copy) = self.problem.classes[other.data].name, other.place
        where = self.name(home)
        if copy is not None:
            where += f", fetched once a step into {self.name(copy)}"
        if other.value is None:
            what = _RULE_WORDS.get(other.rules[0], "a rule is broken")
        else:
            what = value_words(self.problem.goal, other.value)
        reason = {
            "capacity": "capacity",
            "speed": "hardly slower" if other.is_as_fast else "speed, not capacity",
            "price": "price",
            "rules": "not allowed",
            "none": "no worse",
        }[other.reason]
        if other.reason == "capacity" and other.value is not None and other.is_as_fast:
            reason += ", not speed"
        return f"with {name} in {where} {what} ({reason})"


def tier_account(words: TierWords) -> TierAccountDocument:
    """Return the account of a plan, with thresholds and alternatives if it is legal."""
    section, problem, plan, judged = words.section, words.problem, words.plan, words.judged
    alone = evaluate_tiers(problem, replace(plan, num_sessions=problem.min_sessions))
    lookups = lookup_thresholds(problem, plan) if judged.is_feasible else []
    return TierAccountDocument(
        machine=section.machine.name,
        num_cards=problem.machine.num_cards,
        num_sessions=plan.num_sessions,
        goal=problem.goal,
        step=_step(judged.step),
        **both("user_rate", judged.user_rate),
        **both("alone_user_rate", alone.user_rate),
        **both("throughput_per_card", judged.value("throughput_per_card")),
        **both("price_per_hour", judged.price_per_hour),
        tiers=_tiers(section, problem, plan, judged),
        classes=_classes(section, problem, plan, judged),
        paths=[
            TierPathDocument(
                name=name,
                **both("load_s", judged.step.loads_s[p]),
                **both("prefetch_s", judged.step.prefetches_s[p]),
                **both("resume_share", judged.resume_shares[p]),
            )
            for p, name in enumerate(problem.paths)
        ],
        lookups=[_lookup(problem, found) for found in lookups],
        alternatives=[
            TierAlternativeDocument(
                name=problem.classes[other.data].name,
                tier=problem.tiers[other.place[0]].name,
                copy_tier=None if other.place[1] is None else problem.tiers[other.place[1]].name,
                **both("value", other.value),
                num_sessions=other.num_sessions,
                reason=other.reason,
                message=words.message(other),
            )
            for other in words.alternatives
        ],
    )


def _step(step: TierStep) -> TierStepDocument:
    return TierStepDocument(
        compute_exact=str(step.compute_s),
        **both("core_s", step.core_s),
        **both("even_s", step.even_s),
        **both("window_s", step.window_s),
        **both("excess_s", step.excess_s),
        **both("lookups_s", step.lookups_s),
        **both("fetches_s", step.fetches_s),
        **both("total_s", step.total_s),
    )


def _tiers(
    section: TierDecision, problem: TierProblem, plan: TierPlan, judged: TierEvaluation
) -> list[TierDocument]:
    limits = {}
    if judged.is_feasible:
        for found in tier_thresholds(problem, plan):
            keeps = found.keeps_bytes_per_s
            limits[found.tier] = TierThresholdDocument(
                keeps_bytes_per_s=keeps,
                loses_bytes_per_s=None if keeps is None else keeps - 1,
                **both("longest_round_trip_s", found.longest_round_trip_s),
            )
    in_use = {*plan.homes, *plan.copies}
    documents = []
    for t, tier in enumerate(problem.tiers):
        used, density = judged.used_bytes[t], tier.bytes_per_mm2
        documents.append(
            TierDocument(
                name=tier.name,
                kind=section.tiers[t].kind,
                path=problem.paths[tier.path],
                capacity_bytes=tier.capacity_bytes,
                used_bytes=used,
                area_mm2=None if density is None else float(Fraction(used, density)),
                **both("usable_bytes_per_s", tier.bytes_per_s),
                **both("random_reads_s", judged.random_reads_s[t]),
                **both("price_per_hour", tier.price_per_hour if t in in_use else Fraction(0)),
                threshold=limits.get(t),
            )
        )
    return documents


def _classes(
    section: TierDecision, problem: TierProblem, plan: TierPlan, judged: TierEvaluation
) -> list[TierClassDocument]:
    def name_of(given: tuple[int | None, ...], c: int) -> str | None:
        tier = given[c] if c < len(given) else None
        is_known = tier is not None and 0 <= tier < len(problem.tiers)
        return problem.tiers[tier].name if is_known and tier is not None else None

    return [
        TierClassDocument(
            name=data.name,
            kind=section.classes[c].kind,
            tier=name_of(plan.homes, c),
            copy_tier=name_of(plan.copies, c),
            bytes=data.bytes + max(plan.num_sessions, 0) * data.bytes_per_session,
            **both("resume_s", judged.resumes_s[c]),
        )
        for c, data in enumerate(problem.classes)
    ]


def _lookup(problem: TierProblem, found: LookupThreshold) -> TierLookupDocument:
    trip_s, tokens = found.round_trip_step_s, problem.machine.tokens_per_step
    return TierLookupDocument(
        name=problem.classes[found.data].name,
        tier=problem.tiers[found.tier].name,
        **both("step_s", found.step_s),
        **both("window_s", found.window_s),
        **both("round_trip_step_s", trip_s),
        **both("round_trip_user_rate", tokens / trip_s if trip_s else None),
        **both("whole_step_s", found.whole_step_s),
        **both("whole_user_rate", tokens / found.whole_step_s),
        speed_up=as_float(found.step_s / trip_s if trip_s else None),
    )


class TierPlanReader:
    """Reads plans from documents; raises InputError for names that the instance does not know."""

    def __init__(self, problem: TierProblem, source: str) -> None:
        self.source = source
        self.tiers = {tier.name: t for t, tier in enumerate(problem.tiers)}
        self.classes = {data.name: c for c, data in enumerate(problem.classes)}

    def plan(self, document: TierPlanDocument) -> TierPlan:
        """Return the plan; classes that it leaves out lie nowhere."""
        homes: list[int | None] = [None] * len(self.classes)
        copies: list[int | None] = [None] * len(self.classes)
        seen = set()
        for number, place in enumerate(document.classes):
            field = f"tiers.classes[{number}]"
            c = self.classes.get(place.name)
            if c is None:
                rule = f"no class of data is named {place.name!r}"
                raise InputError(self.source, f"{field}.name", rule)
            if c in seen:
                raise InputError(self.source, f"{field}.name", f"{place.name!r} comes twice")
            seen.add(c)
            homes[c] = self._tier(f"{field}.tier", place.tier)
            if place.copy_tier is not None:
                copies[c] = self._tier(f"{field}.copy_tier", place.copy_tier)
        return TierPlan(tuple(homes), tuple(copies), document.num_sessions)

    def _tier(self, field: str, name: str) -> int:
        if name not in self.tiers:
            raise InputError(self.source, field, f"no tier is named {name!r}")
        return self.tiers[name]
