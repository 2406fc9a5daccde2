"""A mix of accelerators from an instance: data, sentence, proofs, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text, load_instance, parse_instance
from optimizer import SolveOptions
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import verify_side
from optimizer.side.mix_kind import mix_problem, price_text
from optimizer.side.result import SideResultDocument

F = Fraction
Document = dict[str, Any]

#: Rate 2 of the big one at 3 an hour, 1 of the small at 2; only the small serves bucket "odd".
SECTION: Document = {
    "accelerators": [
        {"name": "big", "price_per_hour": "3", "max_requests_per_s": [2, None]},
        {"name": "small", "price_per_hour": 2, "max_count": 4, "max_requests_per_s": [1, "1/3"]},
    ],
    "buckets": [{"name": "even", "share": "75%"}, {"name": "odd", "share": 0.25}],
    "requests_per_s": "120requests/min",
    "pieces_per_bucket": 3,
}


def instance(**changes: Any) -> Document:
    document: Document = json.loads(example_text("mix-two-gpus"))
    document["mix"] = deepcopy({**SECTION, **changes})
    return document


def solved(document: Document, solver: str = "auto", seconds: float = 60) -> SideResultDocument:
    options = SolveOptions(solver=solver, time_limit_s=seconds, threads=1)
    return solve_side(parse_instance(document), options)


def test_numbers_are_read_exactly() -> None:
    """Two requests a second, of which 3/4 and 1/4; the odd ones keep 0.5 · 3 = 1.5 small busy."""
    problem = mix_problem(parse_instance(instance()))
    assert [kind.price_per_hour for kind in problem.kinds] == [3, 2]
    assert [kind.max_count for kind in problem.kinds] == [None, 4]
    assert [kind.max_requests_per_s for kind in problem.kinds] == [(2, 0), (1, F(1, 3))]
    assert [bucket.requests_per_s for bucket in problem.buckets] == [F(3, 2), F(1, 2)]
    assert problem.pieces_per_bucket == 3
    published = mix_problem(load_instance("mix-two-gpus"))
    assert [kind.price_per_hour for kind in published.kinds] == [F("1.01"), F("3.67")]


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_a_mix_is_solved_and_judged(solver: str) -> None:
    """Odd: 1.5 small, so two at least, with room for one piece of even: 0.5 each.

    The other two pieces, 1 request a second, keep half a big one busy: 4 + 3 = 7. Small ones
    alone are a load of 3: 6 an hour, which is less.
    """
    document = instance()
    result = solved(document, solver)
    assert (result.termination, result.objective.verified_exact) == ("optimal", "6")
    assert (result.objective.unit, result.objective.direction) == ("an hour", "minimise")
    assert result.plan is not None
    assert result.plan.sentence == "3 x small: 6.00 an hour (one kind alone 6.00)"
    document["mix"]["accelerators"][0]["price_per_hour"] = 1
    result = solved(document, solver)
    assert result.plan is not None
    assert result.plan.sentence == "1 x big + 2 x small: 5.00 an hour (one kind alone 6.00)"
    assert result.evaluation is not None
    big, small = result.evaluation.accelerators
    assert (big.name, big.count, big.max_count, big.price_per_hour_exact) == ("big", 1, None, "1")
    assert (small.name, small.count, small.max_count, small.price_per_hour) == ("small", 2, 4, 4)
    assert F(big.load_exact) * 2 + F(small.load_exact) == 3  # 1.5 of even, 1.5 small of odd
    even, odd = result.evaluation.buckets
    assert (even.name, even.requests_per_s_exact, sum(even.pieces)) == ("even", "3/2", 3)
    assert (odd.name, odd.requests_per_s, odd.pieces) == ("odd", 0.5, [0, 3])
    assert (result.evaluation.value_before, result.evaluation.saved) == (6, 1)
    stored = json.loads(result.to_json())
    judged = verify_side(parse_instance(document), stored)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["objective"] == {"price_per_hour": "5"}
    stored["objective"]["verified_exact"] = "6"
    judged = verify_side(parse_instance(document), stored)
    assert any("price_per_hour is 5, not 6" in line for line in judged["mismatches"])


def test_what_no_accelerators_serve_is_infeasible() -> None:
    """Odd alone keeps 1.5 small ones busy."""
    document = instance()
    document["mix"]["accelerators"][1] = {**SECTION["accelerators"][1], "max_count": 1}
    result = solved(document)
    assert (result.termination, result.plan) == ("infeasible", None)
    assert result.reason == "no accelerators that may be had serve every bucket"
    assert result.certificate.second_opinion.agrees is True


def test_without_one_kind_that_serves_all_there_is_nothing_to_compare() -> None:
    document = instance()
    document["mix"]["accelerators"][1]["max_requests_per_s"] = [None, "1/3"]
    result = solved(document)
    assert result.plan is not None
    assert result.plan.sentence == "1 x big + 2 x small: 7.00 an hour"
    assert result.evaluation is not None
    assert result.evaluation.value_before is None


@pytest.mark.parametrize(
    ("mix", "rules"),
    [
        ({"counts": [1, 2], "pieces": [[2, 1], [0, 3]]}, []),
        ({"counts": [1, 1], "pieces": [[2, 1], [0, 3]]}, [("short", 1)]),
        ({"counts": [1, 5], "pieces": [[2, 1], [0, 3]]}, [("max_count", 1)]),
        ({"counts": [1, 2], "pieces": [[2, 0], [0, 3]]}, [("bucket", 1)]),
        ({"counts": [1, 2], "pieces": [[2, 1], [2, 1]]}, [("cannot_serve", 2)]),
        ({"counts": [1], "pieces": []}, [("kind_count", 1), ("bucket_count", 2)]),
    ],
)
def test_a_hand_written_mix_is_judged(mix: Document, rules: list[tuple[str, int]]) -> None:
    judged = verify_side(parse_instance(instance()), {"mix": mix})
    found = [(v["rule"], v["amount"]) for v in judged["evaluation"]["violations"]]
    assert found == rules
    assert judged["holds"] is (not rules)
    assert judged["objective"] == {"price_per_hour": None if rules else "7"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accelerators": []}, "accelerators"),
        ({"buckets": []}, "buckets"),
        ({"accelerators": SECTION["accelerators"][:1] * 2}, "'big' appears 2 times"),
        ({"buckets": SECTION["buckets"][:1] * 2}, "'even' appears 2 times"),
        ({"buckets": SECTION["buckets"][:1]}, r"max_requests_per_s has 2 rates for 1 buckets"),
        ({"requests_per_s": 0}, "must be more than 0"),
        ({"requests_per_s": "30req"}, "use requests/s or requests/min"),
        ({"pieces_per_bucket": 0}, "pieces_per_bucket"),
        ({"pieces_per_bucket": 1001}, "pieces_per_bucket"),
        ({"buckets": [{"name": "even", "share": -1}, {"name": "odd", "share": 1}]}, "negative"),
    ],
)
def test_bad_sections_are_refused(changes: Document, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_instance(instance(**changes))


def test_a_price_is_refused_below_0_or_in_unknown_units() -> None:
    for price in (-1, "1 USD", "ten", True, None):
        document = instance()
        document["mix"]["accelerators"] = [
            {**SECTION["accelerators"][0], "price_per_hour": price},
            SECTION["accelerators"][1],
        ]
        with pytest.raises(InputError, match=r"accelerators\[0\]\.price_per_hour"):
            parse_instance(document)


@pytest.mark.parametrize(
    ("price", "text"),
    [(F("6.7"), "6.70"), (F(7), "7.00"), (F("1.005"), "1.005"), (F("1234.5"), "1,234.50")],
)
def test_prices_are_written_for_people(price: Fraction, text: str) -> None:
    assert price_text(price) == text


def test_a_decision_without_time_keeps_its_first_answer() -> None:
    result = solved(instance(), seconds=0)
    assert result.plan is not None
    assert result.objective.verified_exact == "6"
