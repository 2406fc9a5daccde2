"""The brute-force oracle of the capacity decision: every plan of a tiny problem, scored exactly.

It tries every number of servers of every class, every way to pack these into racks, everything that
servers can hold, and every number of sessions that this can serve, healthy and after each event. It
shares no rule with the evaluator or the formulations. Skipped are plans that equal another one up
to names, and plans that are worse than one already found in goals that servers alone decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from optimizer.capacity.exhaustive_servers import SERVER_GOALS, Servers, ServerSets
from optimizer.capacity.exhaustive_sessions import Counts, SessionSets, Steps
from optimizer.capacity.plan import CapacityPlan, RackFill, ServerFill
from optimizer.capacity.problem import CapacityProblem, Option, is_maximised

#: Steps that take some seconds.
MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class CapacityOptimum:
    """A plan of lexicographically best goals, and these as they are, in their order."""

    plan: CapacityPlan
    values: tuple[Fraction, ...]


#: Blocks of one server, (option, number) pairs, and the option over several servers that has it.
_Content = tuple[tuple[tuple[int, int], ...], int | None]
#: What the servers of a class hold together: instances of every option inside single servers, and
#: servers that each option over several servers has.
_Held = tuple[Counts, Counts]
#: The servers of a class one by one.
_Fill = tuple[_Content, ...]
_IDLE: _Content = ((), None)


@dataclass(frozen=True, slots=True)
class _Found:
    values: tuple[Fraction, ...]
    servers: Servers
    fills: tuple[_Fill, ...]
    instances: Counts
    survivors: tuple[Counts, ...]
    #: Sessions served: healthy, then after every event.
    served: tuple[Counts, ...]


def best_capacity_exhaustively(
    problem: CapacityProblem, max_steps: int = MAX_STEPS
) -> CapacityPlan | None:
    """Return a plan of lexicographically best goals; None where no plan is legal.

    A plan without sessions has no value of a quotient, so it is no answer where that is a goal.
    Raises TooLargeError where more than `max_steps` steps would be taken.
    """
    best = capacity_optimum(problem, max_steps)
    return None if best is None else best.plan


def capacity_optimum(
    problem: CapacityProblem, max_steps: int = MAX_STEPS
) -> CapacityOptimum | None:
    """Return what `best_capacity_exhaustively` does, with the values of the goals."""
    return _Search(problem, Steps(max_steps)).run()


class _Search:
    def __init__(self, problem: CapacityProblem, steps: Steps) -> None:
        self.problem, self.steps = problem, steps
        self.num_options = len(problem.options)
        self.servers, self.sessions = ServerSets(problem, steps), SessionSets(problem, steps)
        self.best: _Found | None = None
        self.held = cache(self._held)
        self.choices = cache(self._choices)

    def run(self) -> CapacityOptimum | None:
        """Try everything, cheapest servers first."""
        fixed = list[str]()
        for goal in self.problem.goals:
            if goal not in SERVER_GOALS:
                break
            fixed.append(goal)
        tried = [(tuple(s.values[goal] for goal in fixed), s) for s in self.servers.every()]
        for prefix, servers in sorted(tried, key=lambda pair: pair[0]):
            if self.best is not None and prefix > self.best.values[: len(fixed)]:
                break
            self._fill(servers)
        if self.best is None:
            return None
        return CapacityOptimum(self._plan(self.best), self.best.values)

    # What servers hold --------------------------------------------------------------------------

    def _contents(self, j: int) -> Iterator[_Content]:
        """Yield everything that one server of a class in use can hold."""
        c = self.problem.classes[j]
        mine = [self.problem.options[o] for o in self.problem.options_of_pool[c.pool]]
        inside = [option for option in mine if option.num_servers == 1]
        yield from ((blocks, None) for blocks in self._blocks(inside, c.free_cards) if blocks)
        is_whole = c.free_cards == self.problem.pools[c.pool].num_cards
        if is_whole and not c.is_occupied:
            yield from (((), option.index) for option in mine if option.num_servers > 1)

    def _blocks(self, options: list[Option], cards: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield all numbers of instances of some options that fit on so many cards."""
        self.steps.take()
        if not options:
            yield ()
            return
        first, *others = options
        for number in range(cards // first.cards_per_server + 1):
            left = cards - number * first.cards_per_server
            for blocks in self._blocks(others, left):
                yield ((first.index, number), *blocks) if number else blocks

    def _held(self, j: int, number: int) -> dict[_Held, _Fill]:
        """Return all that so many servers of a class can hold together, each with one way to.

        Servers that are bought may be idle. It does not matter which server holds what.
        """
        none = (0,) * self.num_options
        found: dict[_Held, _Fill] = {(none, none): ()}
        contents = list(self._contents(j)) + [_IDLE] * self.problem.is_purchase
        for _ in range(number):
            further = dict[_Held, _Fill]()
            for (inside, spanned), fill in found.items():
                for blocks, over in contents:
                    self.steps.take()
                    more, wider = list(inside), list(spanned)
                    for o, n in blocks:
                        more[o] += n
                    if over is not None:
                        wider[over] += 1
                    further.setdefault((tuple(more), tuple(wider)), (*fill, (blocks, over)))
            found = further
        return found

    def _effect(self, j: int, held: _Held) -> tuple[int, ...]:
        """Return what a class adds to the sums that `_instances` reads.

        These are, for nothing lost and then for what each event takes: instances inside servers,
        then servers that options over several servers have, cell by cell.
        """
        c = self.problem.classes[j]
        zeros = (0,) * self.num_options
        own = list(held[0])
        for cell in self.problem.cells:
            own += held[1] if c.cell == cell else zeros
        effect = list(own)
        for event in self.problem.events:
            effect += own if j in event.classes else [0] * len(own)
        return tuple(effect)

    def _fill(self, servers: Servers) -> None:
        """Try everything that these servers can hold."""
        num_cells, num_events = len(self.problem.cells), len(self.problem.events)
        zero = (0,) * (self.num_options * (1 + num_cells) * (1 + num_events))
        #: Sums so far, and what the last class holds where the next one is like it.
        states: dict[tuple[tuple[int, ...], _Held | None], tuple[_Fill, ...]]
        states = {(zero, None): ()}
        for j, number in enumerate(servers.numbers):
            further: dict[tuple[tuple[int, ...], _Held | None], tuple[_Fill, ...]] = {}
            is_like = self.servers.is_like_last[j] and servers.numbers[j - 1] == number
            is_next_like = j + 1 < len(servers.numbers) and self.servers.is_like_last[j + 1]
            effects = [(h, f, self._effect(j, h)) for h, f in self.held(j, number).items()]
            for (sums, last), fills in states.items():
                self.steps.take(len(effects))
                for held, fill, effect in effects:
                    if is_like and last is not None and held > last:
                        continue
                    total = tuple(a + b for a, b in zip(sums, effect, strict=True))
                    key = total, held if is_next_like else None
                    further.setdefault(key, (*fills, fill))
            states = further
        tried = set[tuple[int, ...]]()
        for (sums, _), fills in states.items():
            if sums not in tried:
                tried.add(sums)
                self._judge(servers, fills, sums)

    # Sessions -----------------------------------------------------------------------------------

    def _judge(self, servers: Servers, fills: tuple[_Fill, ...], sums: tuple[int, ...]) -> None:
        """Keep the plan with the best sessions that these instances can serve, if it is better."""
        counts = self._instances(sums)
        if counts is None:
            return
        instances, survivors = counts
        demanded = tuple(cohort.min_sessions for cohort in self.problem.cohorts)
        after = list[Counts]()
        for event, left in zip(self.problem.events, survivors, strict=True):
            most = self.choices(left, event.min_sessions)
            if not most:
                return
            after.append(max(most, key=sum))
        for healthy in self.choices(instances, demanded):
            self.steps.take()
            values = self._values(servers, instances, healthy, after)
            if values is None or (self.best and not self._is_better(values, self.best.values)):
                continue
            self.best = _Found(values, servers, fills, instances, survivors, (healthy, *after))

    def _instances(self, sums: tuple[int, ...]) -> tuple[Counts, tuple[Counts, ...]] | None:
        """Return the instances of every option, healthy and after each event.

        None where the servers of an option over several make no whole number of instances.
        """
        num, num_cells = self.num_options, len(self.problem.cells)
        rows = (
            np.array(sums, dtype=np.int64)
            .reshape(1 + len(self.problem.events), 1 + num_cells, num)
            .tolist()
        )
        over = [option.num_servers for option in self.problem.options]
        inside, *cells = rows[0]
        if any(n % k for spanned in cells for n, k in zip(spanned, over, strict=True)):
            return None
        healthy = [n + sum(cell[o] // over[o] for cell in cells) for o, n in enumerate(inside)]
        survivors = []
        for event, (lost_inside, *lost_cells) in zip(self.problem.events, rows[1:], strict=True):
            left = [n - lost for n, lost in zip(healthy, lost_inside, strict=True)]
            if event.option is not None:
                left[event.option] -= min(1, left[event.option])
            for spanned, lost_servers in zip(cells, lost_cells, strict=True):
                for o, lost in enumerate(lost_servers):
                    # either the whole cell is lost or one server, and so one instance
                    assert lost in (0, 1, spanned[o]), "a cell is lost as a whole"
                    left[o] -= spanned[o] // over[o] if lost == spanned[o] else lost
            survivors.append(tuple(left))
        return tuple(healthy), tuple(survivors)

    def _choices(self, instances: Counts, least: Counts) -> tuple[Counts, ...]:
        """Return the session counts worth choosing from that so many instances can serve.

        Of equally many sessions no more than the one with most tokens is: goals know no other
        difference.
        """
        tokens = [cohort.new_tokens for cohort in self.problem.cohorts]
        best = dict[int, tuple[int, Counts]]()
        reached = np.argwhere(self.sessions.of(instances)).tolist()
        self.steps.take(len(reached))
        for counts in map(tuple, reached):
            if all(n >= low for n, low in zip(counts, least, strict=True)):
                amount = sum(n * t for n, t in zip(counts, tokens, strict=True))
                best[sum(counts)] = max(best.get(sum(counts), (-1, ())), (amount, counts))
        return tuple(counts for _, counts in best.values())

    def _values(
        self, servers: Servers, instances: Counts, healthy: Counts, after: list[Counts]
    ) -> tuple[Fraction, ...] | None:
        """Return all goals in their order; None where a quotient has no value."""
        problem, known = self.problem, dict(servers.values)
        cards = [option.num_cards for option in problem.options]
        known["cards"] = Fraction(sum(n * k for n, k in zip(instances, cards, strict=True)))
        known["sessions"] = Fraction(sum(healthy))
        # where nothing can be lost, nothing is worse than without a failure
        known["worst_case_sessions"] = Fraction(min(map(sum, after or [healthy])))
        expected, rest = Fraction(0), Fraction(1)
        for event, served in zip(problem.events, after, strict=True):
            chance = event.probability or Fraction(0)
            expected, rest = expected + chance * sum(served), rest - chance
        known["expected_sessions"] = expected + rest * sum(healthy)
        tokens = sum(n * c.new_tokens for n, c in zip(healthy, problem.cohorts, strict=True))
        if sum(healthy) and problem.period_s is not None:
            price = known["price_per_hour"] * problem.period_s / 3600
            known["price_per_on_time_session"] = price / sum(healthy)
            known["price_per_million_tokens"] = price * 10**6 / tokens
        if any(goal not in known for goal in problem.goals):
            return None
        return tuple(known[goal] for goal in problem.goals)

    def _is_better(self, values: tuple[Fraction, ...], than: tuple[Fraction, ...]) -> bool:
        for goal, value, other in zip(self.problem.goals, values, than, strict=True):
            if value != other:
                return value > other if is_maximised(goal) else value < other
        return False

    def _plan(self, found: _Found) -> CapacityPlan:
        """Write down the plan: equal racks, servers, groups and lanes together."""
        racks = Counter(
            (s, tuple(sorted((j, n) for j, n in rack.items() if n)))
            for s, held in found.servers.racks.items()
            for rack in held
            if self.problem.is_purchase
        )
        fills = Counter((j, one) for j, fill in enumerate(found.fills) for one in fill)
        counts = (found.instances, *found.survivors)
        healthy, *after = map(self.sessions.loads, counts, found.served)
        return CapacityPlan(
            tuple(RackFill(s, count, held) for (s, held), count in racks.items()),
            tuple(ServerFill(j, count, *content) for (j, content), count in fills.items()),
            healthy,
            tuple(after),
        )
