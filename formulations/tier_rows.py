"""Rows of the program for tiers: whole numbers, rounded so that no legal plan is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from formulations.integer_program import MAX_SIZE, IntegerProgram
from formulations.tier_forms import NOTHING, Form, TierForms, TimeRow
from optimizer.errors import TooLargeError
from optimizer.tiers.problem import Place

#: Largest sum of a row's coefficients. Whole numbers of a MILP solver may be off by 1e-6, which
#: must stay below half a unit of the row; CP-SAT is held by the row's size alone.
MAX_WEIGHT = {"cp-sat": MAX_SIZE // 4, "highs": 250_000, "cbc": 250_000}

#: Rows stay this far below `MAX_SIZE`.
MAX_ROW = MAX_SIZE // 4

#: Finer numbers are rounded without a search for a common unit.
MAX_DENOMINATOR = 2**60

Terms = dict[int, Fraction]

#: A lower limit of the step: name, terms, constant; and the variable with which it holds, if it
#: does not always, and how much less it is without.
StepRow = tuple[str, Terms, Fraction, tuple[int, Fraction] | None]


@dataclass(slots=True)
class TierModel:
    """A program; `puts` holds the variable of (class, place), `adds` its sessions there."""

    forms: TierForms
    program: IntegerProgram
    #: Most sessions that a class in a place allows, all else left out.
    places: dict[tuple[int, Place], int]
    most_weight: int
    least_sessions: int
    most_sessions: int
    puts: dict[tuple[int, Place], int] = field(default_factory=dict)
    adds: dict[tuple[int, Place], int] = field(default_factory=dict)
    sessions: int | None = None
    step: int | None = None
    #: Units of the step's variable in a second.
    step_units: Fraction = Fraction(1)

    def chosen(self, values: Sequence[int]) -> dict[int, Place]:
        """Return the place of every class."""
        return {c: place for (c, place), v in self.puts.items() if values[v]}

    def bound(self, objective: int | None) -> Fraction | None:
        """Return the value that no plan exceeds, from the objective's; None where it says none."""
        goal = self.forms.problem.goal
        if objective is None:
            return None
        if goal == "sessions":
            return Fraction(-objective)
        tokens = self.forms.problem.machine.tokens_per_step
        return (
            tokens * self.step_units / objective if goal == "user_rate" and objective > 0 else None
        )

    def terms(self, key: tuple[int, Place], form: Form) -> Terms:
        """Return what a class in a place adds to a row: by being there, and by its sessions."""
        if self.sessions is None:
            fixed = form[0] + self.least_sessions * form[1]
            return {self.puts[key]: fixed} if fixed else {}
        found = {self.puts[key]: form[0]} if form[0] else {}
        if form[1]:
            found[self.adds[key]] = form[1]
        return found

    def constant(self, form: Form) -> tuple[Terms, Fraction]:
        """Return a form that needs no place as terms and a constant."""
        if self.sessions is None:
            return {}, form[0] + self.least_sessions * form[1]
        return ({self.sessions: form[1]} if form[1] else {}), form[0]

    def units(self, rows: Sequence[tuple[Terms, Fraction]], extra: int = 0) -> Fraction:
        """Return units in which rows are whole, or as fine as they may be.

        Each row has coefficients of 0 or more and a constant; `extra` weight stands beside them.
        """
        numbers = [c for terms, rest in rows for c in (*terms.values(), rest)]
        exact = None
        if all(c.denominator < MAX_DENOMINATOR for c in numbers):
            scale = math.lcm(*(c.denominator for c in numbers))
            exact = Fraction(scale, math.gcd(*(int(c * scale) for c in numbers)) or 1)
        weight = max((sum(terms.values(), Fraction(0)) for terms, _ in rows), default=Fraction(0))
        variables = self.program.variables
        size = max(
            (
                sum((c * variables[v].max_size for v, c in terms.items()), rest)
                for terms, rest in rows
            ),
            default=Fraction(0),
        )
        finest = min(
            Fraction(MAX_ROW - extra) / size if size else Fraction(MAX_ROW),
            Fraction(self.most_weight) / weight if weight else Fraction(MAX_ROW),
        )
        return exact if exact is not None and exact <= finest else finest

    def add_most(self, name: str, terms: Terms, limit: Fraction) -> None:
        """Require sum <= limit, coefficients 0 or more, rounded down."""
        if not terms:
            if limit < 0:
                self.program.add_row(name, {}, 1, None)
            return
        units = self.units([(terms, max(limit, Fraction(0)))])
        whole = {v: math.floor(c * units) for v, c in terms.items()}
        self.program.add_row(name, whole, None, math.floor(limit * units))


def build_model(
    forms: TierForms,
    backend: str,
    best: Fraction | None,
    cuts: Sequence[Mapping[int, Place]],
) -> TierModel | None:
    """State what is better than the best known and not ruled out; None where nothing is."""
    problem = forms.problem
    alone = {key: forms.most_sessions({key[0]: key[1]}) for key in forms.takes}
    places = {key: most for key, most in alone.items() if most is not None}
    most = problem.max_sessions
    for c in range(len(problem.classes)):
        allowed = [found for (other, _), found in places.items() if other == c]
        if not allowed:
            return None
        most = min(most, max(allowed))
    least = problem.min_sessions
    if problem.goal == "sessions" and best is not None:
        least = int(best) + 1
    if problem.goal == "user_rate":
        most = least
    if problem.goal != "sessions" and best is not None:
        best /= problem.machine.tokens_per_step  # steps a second from here on
    if most < least:
        return None
    weight = MAX_WEIGHT[backend]
    if most > weight:
        raise TooLargeError(f"tiers: {most} sessions are too many to state")
    m = TierModel(forms, IntegerProgram("tiers"), places, weight, least, most)
    define_places(m)
    define_memory(m)
    define_queues(m)
    if problem.goal == "sessions":
        define_target(m)
        assert m.sessions is not None
        m.program.minimise({m.sessions: -1})
    else:
        define_step(m, best)
        if not _is_step_open(m):
            return None
        define_better(m, best)
    for number, cut in enumerate(cuts):
        puts = {m.puts[c, place]: 1 for c, place in cut.items() if (c, place) in m.puts}
        if len(puts) == len(cut):
            m.program.add_row(f"cut[{number}]", puts, None, len(cut) - 1)
    return m


def define_places(m: TierModel) -> None:
    """Every class has one place; its sessions are all there."""
    program, problem = m.program, m.forms.problem
    if problem.goal != "user_rate":
        m.sessions = program.add_variable("sessions", m.least_sessions, m.most_sessions)
    for key in m.places:
        m.puts[key] = program.add_variable(f"put[{key[0]},{key[1]}]", 0, 1)
    for c in range(len(problem.classes)):
        keys = [key for key in m.places if key[0] == c]
        program.add_row(f"place[{c}]", {m.puts[key]: 1 for key in keys}, 1, 1)
        if m.sessions is None or not any(_grows(m, key) for key in keys):
            continue
        if len(keys) == 1:
            m.adds[keys[0]] = m.sessions
            continue
        for key in keys:
            most = min(m.places[key], m.most_sessions)
            m.adds[key] = program.add_variable(f"add[{key[0]},{key[1]}]", 0, max(most, 0))
            row = {m.adds[key]: 1, m.puts[key]: -most}
            program.add_row(f"there[{key[0]},{key[1]}]", row, None, 0)
        program.add_row(f"all[{c}]", {**{m.adds[key]: 1 for key in keys}, m.sessions: -1}, 0, 0)


def _grows(m: TierModel, key: tuple[int, Place]) -> bool:
    """Whether a class takes more of anything with every session."""
    takes = m.forms.takes[key]
    parts = (takes.memory, takes.streams, takes.ahead, takes.ahead_s, takes.waits)
    forms = [form for part in parts for form in part.values()]
    return any(form[1] for form in (*forms, takes.waits_s))


def define_memory(m: TierModel) -> None:
    """No tier holds more than it can."""
    for t, tier in enumerate(m.forms.problem.tiers):
        terms: Terms = {}
        for key in m.places:
            form = m.forms.takes[key].memory.get(t, NOTHING)
            terms |= _summed(terms, m.terms(key, form))
        m.add_most(f"memory[{t}]", terms, Fraction(tier.capacity_bytes))


def _summed(into: Terms, terms: Terms) -> Terms:
    return {v: into.get(v, Fraction(0)) + c for v, c in terms.items()}


def define_queues(m: TierModel) -> None:
    """Resumes arrive no faster than they are read."""
    for p in range(len(m.forms.problem.paths)):
        terms: Terms = {}
        for key in m.places:
            resumes = m.forms.takes[key].resumes
            if resumes is not None and resumes[0] == p and resumes[1]:
                terms[m.puts[key]] = resumes[1]
        m.add_most(f"queue[{p}]", terms, Fraction(1))


def _time_rows(m: TierModel) -> list[StepRow]:
    """Return lower limits of the step; those with resumes on a path hold if these are there."""
    found: list[StepRow] = []
    for row in m.forms.rows:
        plain, rest = _time_terms(m, row, {})
        found.append((f"step[{row.busiest},{row.ahead}]", plain, rest, None))
        for key in m.places:
            resumes = m.forms.takes[key].resumes
            if resumes is None or not 0 < resumes[1] < 1:
                continue
            stretched, _ = _time_terms(m, row, {resumes[0]: 1 / (1 - resumes[1])})
            more = {v: c - plain.get(v, 0) for v, c in stretched.items()}
            variables = m.program.variables
            most = sum((c * variables[v].max_size for v, c in more.items()), Fraction(0))
            if most:
                name = f"step[{row.busiest},{row.ahead};{key}]"
                found.append((name, stretched, rest, (m.puts[key], most)))
    return found


def _time_terms(
    m: TierModel, row: TimeRow, stretch: Mapping[int, Fraction]
) -> tuple[Terms, Fraction]:
    terms, rest = m.constant(m.forms.constant(row))
    for key in m.places:
        form = m.forms.time(row, *key, stretch)
        terms |= _summed(terms, m.terms(key, form))
    return terms, rest


def define_target(m: TierModel) -> None:
    """A step takes no longer than it may."""
    target_s = m.forms.problem.step_target_s
    if target_s is None:
        return
    for name, terms, rest, only in _time_rows(m):
        limit = target_s - rest
        if only is not None:
            terms, limit = _summed({}, terms), limit + only[1]
            terms[only[0]] = terms.get(only[0], Fraction(0)) + only[1]
        m.add_most(name, terms, limit)


def define_step(m: TierModel, best: Fraction | None) -> None:
    """The step is as long as the longest of its limits, in units that make them whole."""
    rows = _time_rows(m)
    parts = [(terms, rest + (only[1] if only else 0)) for _, terms, rest, only in rows]
    units = m.units(parts, extra=1)
    variables = m.program.variables
    longest = max(
        sum((c * variables[v].max_size for v, c in terms.items()), rest) for terms, rest in parts
    )
    if m.forms.problem.goal == "throughput_per_price" and longest:  # `paid` rows weigh as much
        units = min(units, m.most_weight / longest)
    upper = math.floor(longest * units)
    target_s = m.forms.problem.step_target_s
    if target_s is not None:
        upper = min(upper, math.floor(target_s * units))
    if best is not None:
        upper = min(upper, _longest_better(m, best, units))
    m.step_units = units
    m.step = m.program.add_variable("step", min(upper, 0), upper)
    for name, terms, rest, only in rows:
        whole = {v: -math.floor(c * units) for v, c in terms.items()}
        least = math.floor(rest * units)
        if only is not None:  # a step is at least as long as without it
            most = math.ceil(only[1] * units)
            whole[only[0]] = whole.get(only[0], 0) - most
            least -= most
        m.program.add_row(name, {**whole, m.step: 1}, least, None)


def _is_step_open(m: TierModel) -> bool:
    assert m.step is not None
    return m.program.variables[m.step].upper >= 0


def _longest_better(m: TierModel, best: Fraction, units: Fraction) -> int:
    """Return the most units of a step that is part of a better plan."""
    problem = m.forms.problem
    if problem.goal == "user_rate":
        longest = 1 / best
    else:
        longest = m.most_sessions / (best * m.forms.price({}))
    return math.ceil(longest * units) - 1


def define_better(m: TierModel, best: Fraction | None) -> None:
    """Look for a shorter step, or for more throughput than the best has.

    Throughput n / (T · P) exceeds v if v · T · P - n is below 0 (Dinkelbach); P adds the price of
    every tier used, and `paid` is the step where a tier is used, else 0.
    """
    assert m.step is not None
    problem = m.forms.problem
    if problem.goal == "user_rate":
        m.program.minimise({m.step: 1})
        return
    assert m.sessions is not None
    if best is None:
        m.program.minimise({m.sessions: -1})
        return
    by_time: Terms = {m.step: best * m.forms.price({}) / m.step_units}
    if problem.goal == "throughput_per_price":
        for t, tier in enumerate(problem.tiers):
            if tier.price_per_hour:
                by_time[_paid(m, t)] = best * tier.price_per_hour / m.step_units
    units = m.units([({**by_time, m.sessions: Fraction(1)}, Fraction(0))])
    whole = {v: math.floor(c * units) for v, c in by_time.items()}
    gain = {**whole, m.sessions: -math.ceil(units)}
    m.program.minimise(gain)
    m.program.add_row("better", gain, None, -1)


def _paid(m: TierModel, tier: int) -> int:
    """Return the variable of the step's time in which a tier is paid for."""
    assert m.step is not None
    most = m.program.variables[m.step].upper
    paid = m.program.add_variable(f"paid[{tier}]", 0, most)
    uses = [m.puts[key] for key in m.places if tier in m.forms.takes[key].memory]
    if not uses:
        return paid
    used = m.program.add_variable(f"used[{tier}]", 0, 1)
    for v in uses:
        m.program.add_row(f"used[{tier},{v}]", {used: 1, v: -1}, 0, None)
    m.program.add_row(f"paid[{tier}]", {paid: 1, m.step: -1, used: -most}, -most, None)
    return paid
