"""Thinning out: what one candidate must offer to stand for another, from both sides."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import optimizer.screening as screening
from instances.instance import Instance
from instances.io import parse_instance
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.screening import without_dominated
from optimizer.tables import Candidate, MemoryRow

TP4 = Footprint("p", ParallelConfig(tp=4), 1, "ring", batch=2)


def problem(**search: Any) -> Instance:
    return parse_instance(
        {
            "name": "screened",
            "model": "qwen3-8b",
            "fleet": {"pools": [{"name": "p", "server": "hgx-h100", "num_servers": 1}]},
            "workload": {
                "cohorts": [
                    {"name": name, "num_sessions": 3, "context_tokens": 8, "new_tokens": 1}
                    for name in ("a", "b")
                ]
            },
            "objective": {"minimise": "makespan"},
            "search": search,
        }
    )


def candidate(
    index: int,
    footprint: Footprint,
    service: tuple[int, int] = (4, 6),
    rows: tuple[MemoryRow, ...] = (MemoryRow((2, 3), 10),),
) -> Candidate:
    times = tuple(Fraction(s) for s in service)
    return Candidate(index, 0, footprint, rows, times, Fraction(1))


def kept(instance: Instance, *candidates: Candidate) -> list[int]:
    return [c.index for c in without_dominated(instance, candidates)[0]]


@pytest.fixture(autouse=True)
def _screen_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "SCREEN_FROM", 0)


FIRST = candidate(0, TP4)
SP4 = replace(TP4, parallel=ParallelConfig(tp=4, sp=4))


@pytest.mark.parametrize(
    ("other", "left"),
    [
        (candidate(1, SP4), [0]),  # equal: the first one stays
        (candidate(1, SP4, (4, 7)), [0]),  # slower for one cohort
        (candidate(1, SP4, (3, 7)), [0, 1]),  # faster for one cohort, slower for the other
        (candidate(1, SP4, (4, 7), (MemoryRow((2, 3), 11),)), [0, 1]),  # a byte more room
        (candidate(1, SP4, (4, 7), (MemoryRow((2, 2), 10),)), [0, 1]),  # smaller sessions
        (candidate(1, SP4, (4, 7), (MemoryRow((2, 3), 10), MemoryRow((9, 9), 99))), [0]),
        (candidate(1, replace(SP4, batch=3), (4, 7)), [0, 1]),  # a lane more
        (candidate(1, replace(SP4, batch=1), (4, 7)), [0]),  # a lane less
        (candidate(1, replace(SP4, num_servers=2), (4, 7)), [0, 1]),  # other cards
        (candidate(1, replace(SP4, parallel=ParallelConfig(tp=2)), (4, 7)), [0, 1]),  # fewer cards
    ],
)
def test_a_candidate_leaves_only_for_one_that_offers_all_it_does(
    other: Candidate, left: list[int]
) -> None:
    assert kept(problem(), FIRST, other) == left


def test_every_stage_of_the_stand_in_needs_the_room() -> None:
    wide = (MemoryRow((2, 3), 10), MemoryRow((5, 5), 50))
    narrow = (MemoryRow((2, 3), 10), MemoryRow((5, 5), 49))
    pair = candidate(0, TP4, rows=narrow), candidate(1, SP4, (4, 7), wide)
    assert kept(problem(), *pair) == [0, 1]
    pair = candidate(0, TP4, rows=wide), candidate(1, SP4, (4, 7), narrow)
    assert kept(problem(), *pair) == [0]


def test_lanes_beyond_the_sessions_are_of_no_use() -> None:
    # Six sessions: eight lanes are as good as six, five are not.
    six = candidate(0, replace(TP4, batch=6))
    assert kept(problem(), six, candidate(1, replace(SP4, batch=8), (4, 7))) == [0]
    five = candidate(0, replace(TP4, batch=5))
    assert kept(problem(), five, candidate(1, replace(SP4, batch=8), (4, 7))) == [0, 1]


def test_round_robin_deals_by_the_number_of_lanes() -> None:
    more = candidate(1, replace(SP4, batch=1), (4, 7))
    assert kept(problem(dispatch="round_robin"), FIRST, more) == [0, 1]
    assert kept(problem(dispatch="round_robin"), FIRST, candidate(1, SP4, (4, 7))) == [0]


def test_a_loser_says_who_stands_for_it_and_by_how_much() -> None:
    _, rejections = without_dominated(problem(), (FIRST, candidate(1, SP4, (5, 9))))
    (loser,) = rejections
    assert (loser.rule, loser.amount, loser.unit) == ("dominated", 3, "s")
    assert loser.message.startswith("TP4, batch 2 (ring) has the same cards")
