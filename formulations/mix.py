"""The mix of accelerators as an integer program (mix.md)."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from formulations.integer_program import MAX_SIZE, IntegerProgram, ProgramOutcome, solve_program
from optimizer.errors import MismatchError, TooLargeError
from optimizer.mix.problem import Mix, MixProblem
from optimizer.protocols import Termination

#: Largest sum of the coefficients of a row of loads. Whole numbers of a MILP solver may be off by
#: 1e-6, which must stay below half a unit of the row; CP-SAT is held by the row's size alone.
MAX_WEIGHT = {"cp-sat": MAX_SIZE, "highs": 250_000, "cbc": 250_000}


#: How often a program with rounded loads is solved with finer rows at most.
MAX_ROUNDS = 60

#: Numbers of units a card that are tried for a finer row.
MAX_UNITS_TRIED = 3000


@dataclass(frozen=True, slots=True)
class MixOutcome:
    """How a solve ended: a mix, its price an hour, and a bound on the price of all mixes.

    bound <= value.
    """

    termination: Termination
    mix: Mix | None = None
    value: Fraction | None = None
    bound: Fraction | None = None


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Loads of one kind in whole numbers: of a piece of each bucket it can serve, of one card."""

    piece_units: dict[int, int]  # by bucket
    card_units: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class MixModel:
    """The program; `gives` holds the variable of (bucket, kind), `counts` that of each kind."""

    problem: MixProblem
    program: IntegerProgram
    gives: dict[tuple[int, int], int]
    counts: tuple[int, ...]
    #: Price of one unit of the objective.
    price_unit: Fraction
    #: Whether the rows say exactly what the loads are.
    is_exact: bool


def solve_mix(
    problem: MixProblem,
    backend: str,
    *,
    deadline: float,
    threads: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> MixOutcome:
    """Choose a mix; `deadline` is a `time.monotonic()` value. Raises as `solve_program` does.

    Where loads are too fine for whole numbers they are rounded down, which proves a bound. Rows are
    added that the mixes found break, until one costs what the bound says; failing that, loads are
    rounded up once, which gives a mix that holds, and the outcome may be no proof.
    """

    def run(m: MixModel) -> ProgramOutcome:
        return solve_program(
            m.program, backend, deadline=deadline, threads=threads, seed=seed, stop=stop
        )

    most = MAX_WEIGHT.get(backend, MAX_SIZE)
    model, mixes = build_model(problem, most), list[Mix]()
    bound: Fraction | None = None
    for _ in range(MAX_ROUNDS):
        found = run(model)
        if found.termination is Termination.INFEASIBLE:
            return MixOutcome(Termination.INFEASIBLE)  # loads rounded down are no harder to serve
        if found.bound is not None:
            bound = max(found.bound * model.price_unit, bound or Fraction(0))
        if found.values is not None:
            mixes.append(extract(model, found.values))
        if model.is_exact:
            _check_claim(model, found, mixes, backend)
            break
        is_optimal = found.termination is Termination.OPTIMAL and found.values is not None
        if not is_optimal or _price(problem, mixes) == bound:
            break
        assert found.values is not None
        if not define_finer_loads(model, found.values, most):
            break
    if not model.is_exact and _price(problem, mixes) != bound:
        above = build_model(problem, most, is_rounded_up=True)
        other = run(above)
        mixes += [] if other.values is None else [extract(above, other.values)]
    return _outcome(problem, mixes, bound, backend)


def _outcome(
    problem: MixProblem, mixes: Sequence[Mix], bound: Fraction | None, backend: str
) -> MixOutcome:
    """Return the cheapest mix that may be had, an optimum if it meets the bound."""
    value = _price(problem, mixes)
    if value is None:
        return MixOutcome(Termination.NO_SOLUTION_FOUND, bound=bound)
    if bound is not None and bound > value:
        raise MismatchError(f"{backend} claims that no mix costs less than {bound}; one is {value}")
    mix = next(mix for mix in mixes if _price(problem, [mix]) == value)
    ended = Termination.OPTIMAL if value == bound else Termination.FEASIBLE
    return MixOutcome(ended, mix, value, bound)


def _price(problem: MixProblem, mixes: Sequence[Mix]) -> Fraction | None:
    """Return the least price of the mixes that take no more accelerators than may be had."""
    prices = [
        sum((n * k.price_per_hour for n, k in zip(m.counts, problem.kinds, strict=True)), start)
        for start in (Fraction(0),)
        for m in mixes
        if all(
            k.max_count is None or n <= k.max_count
            for n, k in zip(m.counts, problem.kinds, strict=True)
        )
    ]
    return min(prices, default=None)


def _check_claim(m: MixModel, found: ProgramOutcome, mixes: Sequence[Mix], backend: str) -> None:
    """A claimed optimum is what its mix costs; before that counts may be larger than needed."""
    if found.objective is None:
        return
    claimed, price = found.objective * m.price_unit, _price(m.problem, mixes)
    is_off = price is None or price > claimed
    if is_off or (found.termination is Termination.OPTIMAL and price != claimed):
        raise MismatchError(f"{backend} claims a price of {claimed}, its mix costs {price}")


def load_row(problem: MixProblem, kind: int, most: int, *, is_rounded_up: bool) -> LoadRow:
    """Return the loads of a kind in whole numbers: exact if all and a card's add up to `most`.

    Raises TooLargeError where even one unit a card would make the row too large.
    """
    buckets = range(len(problem.buckets))
    loads = {b: problem.piece_load(b, kind) for b in buckets if problem.can_serve(b, kind)}
    pieces = problem.pieces_per_bucket
    total = pieces * sum(loads.values(), Fraction(0))
    size = math.ceil(total) + max_cards(problem, kind, total)
    scale = math.lcm(*(load.denominator for load in loads.values()))
    weight = sum(loads.values(), Fraction(1))
    if scale * weight <= most and scale * size < MAX_SIZE:
        return LoadRow({b: int(load * scale) for b, load in loads.items()}, scale, True)
    # rounding up may add a unit for each piece
    room, rest = MAX_SIZE - 1 - pieces * len(loads), most - len(loads)
    units = min(int(rest / weight), room // size)
    if units < 1:
        name = problem.kinds[kind].name
        raise TooLargeError(f"mix: a load of {math.ceil(total)} on {name} is too large to state")
    rounded = math.ceil if is_rounded_up else math.floor
    return LoadRow({b: rounded(load * units) for b, load in loads.items()}, units, False)


def max_cards(problem: MixProblem, kind: int, load: Fraction) -> int:
    """Return the most accelerators of a kind that are of use under its largest load."""
    most = problem.kinds[kind].max_count
    return math.ceil(load) if most is None else min(math.ceil(load), most)


def build_model(
    problem: MixProblem, most: int = MAX_SIZE, *, is_rounded_up: bool = False
) -> MixModel:
    """State the decision; coefficients of a row of loads add up to `most`. Raises TooLargeError."""
    program = IntegerProgram("mix")
    rows = [
        load_row(problem, g, most, is_rounded_up=is_rounded_up) for g in range(len(problem.kinds))
    ]
    pieces = problem.pieces_per_bucket
    gives = {
        (b, g): program.add_variable(f"gives[{b},{g}]", 0, pieces)
        for g, row in enumerate(rows)
        for b in row.piece_units
    }
    counts = []
    for g, row in enumerate(rows):
        # rounded up a load may need a card more than the exact one; finer rows may need all of it
        rounded = Fraction(pieces * sum(row.piece_units.values()), row.card_units)
        exact = pieces * sum((problem.piece_load(b, g) for b in row.piece_units), Fraction(0))
        upper = max_cards(problem, g, max(rounded, exact))
        counts.append(program.add_variable(f"count[{g}]", 0, upper))
    prices = [kind.price_per_hour for kind in problem.kinds]
    scale = math.lcm(*(price.denominator for price in prices))
    whole = [int(price * scale) for price in prices]
    unit = math.gcd(*whole) or 1
    is_exact = all(row.is_exact for row in rows)
    m = MixModel(problem, program, gives, tuple(counts), Fraction(unit, scale), is_exact)
    define_buckets(m)
    define_loads(m, rows)
    program.minimise({v: p // unit for v, p in zip(counts, whole, strict=True)})
    return m


def define_buckets(m: MixModel) -> None:
    """All pieces of a bucket are given to kinds that can serve it."""
    terms: list[dict[int, int]] = [{} for _ in m.problem.buckets]
    for (b, _), v in m.gives.items():
        terms[b][v] = 1
    pieces = m.problem.pieces_per_bucket
    for b, row in enumerate(terms):
        m.program.add_row(f"bucket[{b}]", row, pieces, pieces)


def define_loads(m: MixModel, rows: Sequence[LoadRow]) -> None:
    """The pieces of a kind keep no more accelerators busy than there are."""
    for g, row in enumerate(rows):
        terms = {m.gives[b, g]: units for b, units in row.piece_units.items()}
        m.program.add_row(f"load[{g}]", {**terms, m.counts[g]: -row.card_units}, None, 0)


def define_finer_loads(m: MixModel, values: Sequence[int], most: int) -> int:
    """Add rows of loads rounded down that values break; return how many.

    Each is of a kind whose exact load exceeds its count, with another number of units a card.
    """
    num_added = 0
    for g in range(len(m.problem.kinds)):
        given = {
            b: (values[v], m.problem.piece_load(b, g))
            for (b, kind), v in m.gives.items()
            if kind == g and values[v]
        }
        count = values[m.counts[g]]
        if sum((num * load for num, load in given.values()), Fraction(0)) <= count:
            continue
        units = _telling_units(m, g, given, count, most)
        if units is not None:
            row = {m.gives[b, g]: math.floor(units * load) for b, (_, load) in given.items()}
            m.program.add_row(f"finer[{g}]", {**row, m.counts[g]: -units}, None, 0)
            num_added += 1
    return num_added


def _telling_units(
    m: MixModel, kind: int, given: Mapping[int, tuple[int, Fraction]], count: int, most: int
) -> int | None:
    """Return units a card in which loads rounded down exceed a count; None where none is found."""
    loads = [load for _, load in given.values()]
    total, cards = sum(loads, Fraction(0)), m.program.variables[m.counts[kind]].upper
    size = total * m.problem.pieces_per_bucket + cards
    largest = min(int(most / (total + 1)), int((MAX_SIZE - 1) / size))
    terms = [(num, load.numerator, load.denominator) for num, load in given.values()]
    for units in range(largest, max(largest - MAX_UNITS_TRIED, 0), -1):
        if sum(num * (units * p // q) for num, p, q in terms) > units * count:
            return units
    return None


def extract(m: MixModel, values: Sequence[int]) -> Mix:
    """Return the pieces as given, with the accelerators that they exactly need."""
    problem = m.problem
    pieces = [[0] * len(problem.kinds) for _ in problem.buckets]
    loads = [Fraction(0)] * len(problem.kinds)
    for (b, g), v in m.gives.items():
        pieces[b][g] = values[v]
        loads[g] += values[v] * problem.piece_load(b, g)
    return Mix(tuple(math.ceil(load) for load in loads), tuple(tuple(row) for row in pieces))
