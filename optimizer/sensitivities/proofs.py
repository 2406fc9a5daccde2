"""Proofs that nothing changes on the way to a threshold.

*Pinned.* Along most inputs no plan ever gains in one direction (`axis.sense_of`): it keeps its
values or they rise, and it stays forbidden where it is. Then the optimum cannot fall in that
direction either. If one plan is optimal at both ends with the same values, the optimum, which lies
between them, has those values everywhere between, and so has the plan.

*Straight.* Let a and b be two values, every plan at least as early at a as in between, and there as
early as at b. Service times s are convex in the coordinate u (sums and maxima of linear functions);
a convex function that meets its chord at one inner point is linear. Let all s be linear between a
and b, and let every plan p have the same form: no fault stops a session and none waits for a
release of its own, so that ends are sums of service times, and all ends that an objective takes the
largest of are multiples of one s. Then each objective of p is linear in u, divided by the sessions
on time, n_p(u), where it is a cost per session on time. At u between them let p be allowed. It is
allowed at a, too, as it is no later there, and n_p(u) <= n_p(a). So its value at u is at least
w_p(u), the linear function with n_p(a) in the place of n_p(u). At a, w_p is the value of p, hence
at least the optimum. At b it is at least the optimum of the problem in which deadlines are longer
by the most that any service time grows from a to b (and by as much as a common release is later),
and nothing else is limited: whatever is on time at a is on time there. If one plan W is optimal at
a, has the value of that relaxed optimum at b, and as many sessions on time at b as at a, its own
value is linear and w_p >= W at both ends, hence between: W is optimal at u. Equal first objectives
at an inner point are equal everywhere (a linear difference that is nowhere negative and 0 inside),
so the next ones compare in the same way.

*Walked.* Whole numbers near the start are judged one by one. The optimum as a function of one
deadline is a step function whose steps `optimizer.frontiers.deadline` finds; on a step the base
deployment's best value can only fall with a longer deadline, so where it is optimal at the step's
shortest deadline it is optimal all along it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

from instances.budget import Budget
from instances.instance import Instance
from optimizer.frontiers.deadline import DeadlineLine
from optimizer.plan import Plan
from optimizer.pricing import build_tables
from optimizer.sensitivities.axis import NEAR, Place, distance
from optimizer.sensitivities.judging import Unsettled, Values, rooms, values_of
from optimizer.sensitivities.line import Line
from optimizer.tables import ProblemTables

#: Inputs that change service times alone, convexly in their coordinate.
TIMES = frozenset({"alpha_s", "time_s", "session_s", "bandwidth_bytes_per_s"})
TIMES |= {"memory_bandwidth_bytes_per_s"}
#: Rules by which candidates leave that could be used, but never need be.
BEATEN = frozenset({"slower_collective", "dominated"})
#: Larger searches are not priced whole for a proof.
MAX_CANDIDATES = 96
#: Steps of a frontier that are walked for a proof.
MAX_WALK = 40
#: Objectives that take the largest of all ends, or do where the whole fleet is billed.
LARGEST = frozenset({"makespan", "max_latency"})
BILLED = frozenset({"cost_per_on_time_session", "occupied_card_seconds", "energy"})


def is_proven_kept(line: Line, start: Place, end: Place) -> bool:
    """Whether the base deployment is proven optimal between two places at which it is."""
    if start == end or _is_pinned(line, start, end):
        return True
    try:
        return _is_straight(line, start, end)
    except Unsettled:
        return False


def first_change(line: Line, start: Place, end: Place) -> tuple[Place | None, bool]:
    """Walk from one place that keeps the plan towards another.

    Returns a place on the way that does not keep it, None if none was found, and whether every
    place on the way has then been judged.
    """
    try:
        if line.axis.is_whole and distance(end, start) <= NEAR + 1:
            step = 1 if end > start else -1
            between = range(int(start) + step, int(end), step)
            return next((p for p in between if not line.at(p).is_kept), None), True
        if line.axis.field.path[-1] == "deadline_s":
            return _walk_deadlines(line, start, end)
    except Unsettled:
        pass
    return None, False


def _values(line: Line, place: Place, plan: Plan) -> Values | None:
    return values_of(line.known(place), line.evaluation(place, plan))


def _is_pinned(line: Line, start: Place, end: Place) -> bool:
    """Whether one plan is optimal with the same values at both ends, and none gains one way."""
    values = line.at(start).values
    if not line.axis.sense or values != line.at(end).values:
        return False
    plans = (line.at(start).own, line.at(end).own)
    return any(
        plan is not None and values == _values(line, start, plan) == _values(line, end, plan)
        for plan in plans
    )


def _walk_deadlines(line: Line, start: Place, end: Place) -> tuple[Place | None, bool]:
    """Judge the shortest deadline of every step between two deadlines."""
    low, high = min(start, end), max(start, end)
    instance = line.known(start)
    cohort = int(line.axis.field.path[2])
    follow = DeadlineLine(line.judge.solver, instance, (cohort,))
    shorter = follow.next_shorter_s()

    def below(deadline_s: Fraction) -> Fraction | None:
        following = shorter(deadline_s)
        return following if following >= low else None

    found: Place | None = None
    for count, step in enumerate(islice(follow.walk(Fraction(high), below), MAX_WALK + 1)):
        if count == MAX_WALK or not step.solved.is_proven:
            return found, False
        place = low if step.from_s is None else max(step.from_s, low)
        if not line.at(place).is_kept:
            found = place  # the walk is downward: the first change upward is the last one found
            if end < start:
                return found, True
    return found, True


def _is_straight(line: Line, start: Place, end: Place) -> bool:
    """Whether all objectives are linear between two places, and one plan is optimal at both."""
    first, last = line.known(start), line.known(end)
    middle = line.axis.middle(start, end)
    if middle in (start, end) or not (_is_convex(line) and has_linear_objectives(first)):
        return False
    tables = [_all_tables(line, place) for place in (start, middle, end)]
    if any(t is None for t in tables):
        return False
    a, m, b = (t for t in tables if t is not None)
    at = [line.axis.coordinate(place) for place in (start, middle, end)]
    share = (at[1] - at[0]) / (at[2] - at[0])
    if not _is_linear(a, m, b, share):
        return False
    starts_fast = _is_no_slower(a, b) and (start < end or a.candidates != b.candidates)
    if not (starts_fast or _is_no_slower(b, a)):
        return False
    ends = (start, end) if starts_fast else (end, start)
    loose = relaxed(first, last, a, b) if starts_fast else relaxed(last, first, b, a)
    optimum = line.judge.solver.solve(loose)
    if not optimum.is_proven:
        return False
    for plan in (line.at(start).own, line.at(end).own):
        if plan is None:
            continue
        fine, poor = (_values(line, place, plan) for place in ends)
        on_time = {line.evaluation(place, plan).num_on_time for place in ends}
        if fine == line.at(ends[0]).values and poor == optimum.values and len(on_time) == 1:
            return True
    return False


def _is_convex(line: Line) -> bool:
    """Whether service times are convex in the coordinate of the input, which changes nothing else.

    A release common to all sessions only shifts all ends. In the context times are convex where
    every layer reads all of its cache, entry by entry, and neither cards nor stages are dealt
    tokens anew.
    """
    path, instance = line.axis.field.path, line.known(line.axis.start)
    if path[-1] in TIMES or "peak_flops_per_s" in path:
        return True
    if path[-1] == "release_s":
        return len(instance.workload.cohorts) == 1
    model, search = instance.model, instance.search
    if path[-1] != "context_tokens" or instance.objective.maximise is not None:
        return False
    if not search.pp == search.cp == search.dcp == (1,):
        return False
    return all(
        part.is_fixed
        or (part.window is None and part.max_read_entries is None and part.tokens_per_entry == 1)
        for parts in model.layer_state
        for part in parts
    )


def has_linear_objectives(instance: Instance) -> bool:
    """Whether the objectives of every plan are linear where all service times are.

    One session has one end. Where all serving instances are alike and so are all sessions, every
    end is a multiple of one service time. Means of ends are sums; so is what each serving instance
    is billed for, if its own last end is that of its only lane.
    """
    workload, search, names = instance.workload, instance.search, instance.objective.names
    if instance.faults or len({cohort.release_s for cohort in workload.cohorts}) > 1:
        return False
    is_one_cohort = len(workload.cohorts) == 1
    is_alike = is_one_cohort and search.deployment == "uniform" and len(instance.fleet.pools) == 1
    if workload.num_sessions == 1 or is_alike:
        return True
    by_fleet = instance.objective.billing == "fleet"
    if LARGEST & {*names} or (by_fleet and BILLED & {*names}):
        return False
    degrees = (search.batch, search.micro_batches, search.dp)
    return is_one_cohort or not BILLED & {*names} or all(lanes == (1,) for lanes in degrees)


def _all_tables(line: Line, place: Place) -> ProblemTables | None:
    """Return the prices of all candidates, those that others beat included; None for too many."""
    instance = line.known(place)
    usual = line.judge.tables(instance)
    if not usual.is_complete:
        return None
    if not any(rejection.rule in BEATEN for rejection in usual.rejections):
        return usual
    if len(usual.candidates) + len(usual.rejections) > MAX_CANDIDATES:
        return None
    return build_tables(instance, keep_all=True)


def _is_linear(a: ProblemTables, m: ProblemTables, b: ProblemTables, share: Fraction) -> bool:
    """Whether candidates are the same, hold the same, and take times on the chord in between."""
    if not rooms(a) == rooms(m) == rooms(b):
        return False
    return all(
        low + share * (high - low) == middle
        for one, between, other in zip(a.candidates, m.candidates, b.candidates, strict=True)
        for low, middle, high in zip(one.service_s, between.service_s, other.service_s, strict=True)
    )


def _is_no_slower(one: ProblemTables, other: ProblemTables) -> bool:
    return all(
        mine <= theirs
        for c, d in zip(one.candidates, other.candidates, strict=True)
        for mine, theirs in zip(c.service_s, d.service_s, strict=True)
    )


def relaxed(fast: Instance, slow: Instance, early: ProblemTables, late: ProblemTables) -> Instance:
    """Return the slow end's problem with deadlines as much longer as ends can be later there."""
    growth = max(
        theirs / mine
        for c, d in zip(early.candidates, late.candidates, strict=True)
        for mine, theirs in zip(c.service_s, d.service_s, strict=True)
    )
    cohorts = []
    for mine, cohort in zip(fast.workload.cohorts, slow.workload.cohorts, strict=True):
        if cohort.deadline_s is not None:
            later_s = growth * cohort.deadline_s + cohort.release_s - mine.release_s
            cohort = cohort.model_copy(update={"deadline_s": later_s})
        cohorts.append(cohort)
    return slow.model_copy(
        update={
            "workload": slow.workload.model_copy(update={"cohorts": tuple(cohorts)}),
            "objective": slow.objective.model_copy(update={"at_most": Budget()}),
        }
    )
