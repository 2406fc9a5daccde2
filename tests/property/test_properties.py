"""What must hold of every problem instance: monotone resources, names that mean nothing, documents.

Each statement says why it is true. Optima are compared objective list by objective list; a plan
that keeps its cards and queues gets no worse in any measure, so the lexicographic optimum does not
either, and neither does cost / on_time, whose parts move the right way both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from formulations.milp_engine import HighsDeployment
from instances import InputError, Instance, parse_instance
from instances.quantity import format_exact, parse_quantity
from optimizer import SolveOptions, solve, verify
from optimizer.exhaustive import solve_exhaustively
from optimizer.generate import DEGREES, tiny_instance
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import SolveRequest, Termination

Json = dict[str, Any]
Values = tuple[Fraction, ...] | None
WINDOW = ("release", "deadline")
seeds = st.integers(0, 10**6)
factors = st.fractions(1, 3, max_denominator=8)
quick = settings(max_examples=25, deadline=None, database=None, derandomize=True)


def optimum(instance: Instance) -> Values:
    """Return HiGHS's proven optimum; None when it proves that nothing fits."""
    request = SolveRequest(build_tables(instance), objective_terms(instance), time.monotonic() + 60)
    outcome = HighsDeployment().solve(request)
    if outcome.termination is Termination.INFEASIBLE:
        return None
    assert outcome.termination is Termination.OPTIMAL
    return tuple(claim.value for claim in outcome.claims if claim.value is not None)


def changed(instance: Instance, change: Callable[[Json], None]) -> Instance:
    """Return the instance that its own document describes after a change."""
    document = instance.model_dump(mode="json")
    change(document)
    return parse_instance(document)


def scale(place: Json, field: str, dimension: str, factor: Fraction) -> None:
    """Multiply a quantity of a document exactly."""
    place[field] = format_exact(parse_quantity(place[field], dimension) * factor, dimension)


def check_no_worse(before: Instance, change: Callable[[Json], None]) -> None:
    """Check that a change of the document leaves the optimum as good or better."""
    old, new = optimum(before), optimum(changed(before, change))
    event("equal" if new == old else "better" if old is not None else "became feasible")
    if old is not None:
        assert new is not None
        assert new <= old


@quick
@given(seeds, st.integers(0, 400), st.integers(1, 3000))
def test_more_memory_is_never_worse(seed: int, less: int, more: int) -> None:
    """Every plan that fitted still fits and takes the same time, uniform or mixed.

    Only pools whose memory was drawn to fit or to miss some queue are worth a look; some bytes
    less than that is where the step begins. Not so where pipelines are cut by what fits: another
    cut may hold more and take longer.
    """

    def change(document: Json, by: int) -> None:
        for pool in document["fleet"]["pools"]:
            pool["server"]["accelerator"]["memory_bytes"] += by

    drawn = tiny_instance(seed)
    assume(any(p.server.accelerator.memory_bytes < 10**9 for p in drawn.fleet.pools))
    assume(drawn.search.pp == (1,) or drawn.search.stage_cut == "even")
    check_no_worse(changed(drawn, lambda d: change(d, -less)), lambda d: change(d, more))


@quick
@given(seeds, factors)
def test_more_memory_bandwidth_is_never_worse(seed: int, factor: Fraction) -> None:
    """Service times shrink; a queue starts and ends no later, also past a stall.

    The first stretch that is free of stalls and long enough only comes earlier when a shorter one
    will do, and a stall that hit a session may now miss it.
    """

    def change(document: Json) -> None:
        for pool in document["fleet"]["pools"]:
            card = pool["server"]["accelerator"]
            scale(card, "memory_bandwidth_bytes_per_s", "bytes_per_s", factor)

    check_no_worse(tiny_instance(seed), change)


@quick
@given(seeds, factors, factors)
def test_smaller_alpha_and_more_fabric_bandwidth_are_never_worse(
    seed: int, slower: Fraction, faster: Fraction
) -> None:
    """Rings and trees get faster, measured tables stay as they are: no service time grows.

    A mixed search picks the faster collective anew for each candidate, a uniform one keeps all.
    """

    def change(document: Json) -> None:
        for pool in document["fleet"]["pools"]:
            for fabric in (pool["server"]["fabric"], pool["fabric_between"]):
                if fabric is not None:
                    scale(fabric, "alpha_s", "seconds", 1 / slower)
                    scale(fabric, "bandwidth_bytes_per_s", "bytes_per_s", faster)

    check_no_worse(tiny_instance(seed), change)


def stretch(document: Json, factor: Fraction) -> None:
    """Multiply the time that every deadline leaves after the release."""
    for cohort in document["workload"]["cohorts"]:
        if cohort["deadline_s"] is not None:
            release, deadline = (parse_quantity(cohort[f"{x}_s"], "seconds") for x in WINDOW)
            cohort["deadline_s"] = f"{release + (deadline - release) * factor}s"


@settings(quick, max_examples=40)
@given(seeds, factors, factors)
def test_a_later_deadline_is_never_worse(seed: int, sooner: Fraction, later: Fraction) -> None:
    """Ends do not depend on deadlines, so the same plan has as many sessions on time or more."""
    cost = {"minimise": "cost_per_on_time_session", "billing": "instance"}
    drawn = tiny_instance(seed, objective=cost if seed % 2 else None)
    assume(any(c.deadline_s is not None for c in drawn.workload.cohorts))
    check_no_worse(changed(drawn, lambda d: stretch(d, 1 / sooner)), lambda d: stretch(d, later))


@settings(quick, max_examples=40)
@given(seeds, st.sampled_from(sorted(DEGREES)), st.integers(1, 3))
def test_one_more_degree_to_choose_from_is_never_worse(seed: int, name: str, degree: int) -> None:
    """Every plan of the shorter list is one of the longer, at the same price."""
    before = tiny_instance(seed)
    listed = getattr(before.search, name)
    assume(listed is not None and degree not in listed)

    def change(document: Json) -> None:
        document["search"][name] = [*listed, degree]

    check_no_worse(before, change)


BILLED = ("occupied_card_seconds", "energy", "cost_per_on_time_session")


@settings(quick, max_examples=40)
@given(seeds)
def test_one_more_server_is_never_worse_in_a_mixed_search(seed: int) -> None:
    """The old plan leaves the new cards idle, under either dispatch.

    Not so where idle cards count: under fleet billing cost and energy pay for the new server too,
    and a uniform search must fill it (its spans may no longer divide the servers at all).
    """
    before = tiny_instance(seed)
    assume(before.search.deployment == "mixed")
    paid = before.objective.billing == "fleet"
    assume(not (paid and set(BILLED) & set(before.objective.minimise)))

    def change(document: Json) -> None:
        document["fleet"]["pools"][seed % len(document["fleet"]["pools"])]["num_servers"] += 1

    check_no_worse(before, change)


def test_one_more_server_costs_more_under_fleet_billing() -> None:
    """The exception is real: a card that helps nobody is billed until the end all the same."""
    one = tiny_instance(0, objective={"minimise": "occupied_card_seconds", "billing": "fleet"})

    def alone(document: Json) -> None:
        document["search"] = {"tp": [1]}
        document["faults"] = []
        document["workload"] = {
            "cohorts": [{"name": "c", "num_sessions": 1, "context_tokens": 1, "new_tokens": 1}]
        }
        for pool in document["fleet"]["pools"]:
            pool["server"]["accelerator"]["memory_bytes"] = 10**9

    def wider(document: Json) -> None:
        document["fleet"]["pools"][0]["num_servers"] += 1

    before = changed(one, alone)
    after = changed(before, wider)
    old, new = optimum(before), optimum(after)
    assert old is not None
    assert new is not None
    # one session on one card either way, so the bill grows as the fleet does
    assert new[0] / old[0] == Fraction(after.fleet.num_cards, before.fleet.num_cards)
    assert after.fleet.num_cards > before.fleet.num_cards


def name_pools_of_faults(document: Json) -> None:
    """Write the pool a fault means by default, so that pools may change places."""
    for fault in document["faults"]:
        fault["pool"] = fault["pool"] or document["fleet"]["pools"][0]["name"]


@quick
@given(seeds)
def test_the_order_of_pools_servers_and_cards_means_nothing(seed: int) -> None:
    """Reversing all three renames cards; faults move along.

    Only a uniform search under round robin sees an order: it deals sessions to cards as listed.
    Reversed servers keep the consecutive groups of a uniform layout, because these fill the pool.
    """
    before = tiny_instance(seed)
    assume((before.search.deployment, before.search.dispatch) != ("uniform", "round_robin"))
    pools = {pool.name: pool for pool in before.fleet.pools}

    def change(document: Json) -> None:
        name_pools_of_faults(document)
        document["fleet"]["pools"].reverse()
        for fault in document["faults"]:
            pool = pools[fault["pool"]]
            fault["server"] = pool.num_servers - 1 - fault["server"]
            fault["card"] = pool.server.num_cards - 1 - fault["card"]

    assert optimum(changed(before, change)) == optimum(before)


@quick
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_cohorts_means_nothing_to_optimised_dispatch(seed: int, rng: Any) -> None:
    """Cohorts are a set there; round robin deals cohorts of equal release as they are listed."""
    before = tiny_instance(seed)
    assume(before.search.dispatch == "optimised")
    assume(len(before.workload.cohorts) > 1)
    after = changed(before, lambda document: rng.shuffle(document["workload"]["cohorts"]))
    assert optimum(after) == optimum(before)


@quick
@given(seeds, st.permutations(range(3)))
def test_names_mean_nothing(seed: int, order: list[int]) -> None:
    """Renamed pools (faults follow), cohorts, model and hardware; also names in another order."""
    before = tiny_instance(seed)

    def change(document: Json) -> None:
        document["name"] = document["model"]["name"] = "x"
        new = {pool["name"]: f"p{order[i]}" for i, pool in enumerate(document["fleet"]["pools"])}
        for pool in document["fleet"]["pools"]:
            pool["name"] = new[pool["name"]]
            pool["server"]["name"] = pool["server"]["accelerator"]["name"] = "same"
            pool["server"]["fabric"]["name"] = "fabric"
        for fault in document["faults"]:
            fault["pool"] = None if fault["pool"] is None else new[fault["pool"]]
        for i, cohort in enumerate(document["workload"]["cohorts"]):
            cohort["name"] = f"{order[i]} weird/na me"

    after = changed(before, change)
    assert optimum(after) == optimum(before)
    assert solve_exhaustively(after).values == solve_exhaustively(before).values


@settings(quick, max_examples=100)
@given(seeds)
def test_canonical_json_is_the_instance(seed: int) -> None:
    """Read back, it is equal, has the same text and the same digest, every fraction exact."""
    before = tiny_instance(seed)
    text = before.canonical_json()
    after = parse_instance(json.loads(text, parse_float=pytest.fail))
    assert after == before
    assert after.canonical_json() == text
    assert after.sha256() == before.sha256()
    again = changed(before, lambda document: document.update(description="other"))
    assert again.sha256() != before.sha256()


@quick
@given(seeds)
def test_a_result_survives_json_and_verifies(seed: int) -> None:
    """Written and read back, every claim of a result holds; a plan of nothing says so."""
    instance = tiny_instance(seed)
    result = solve(instance, SolveOptions(threads=1))
    document = json.loads(result.to_json())
    assert document == result.model_dump(mode="json")
    event(result.termination)
    if result.plan is None:
        assert result.termination == "infeasible"
        with pytest.raises(InputError, match="holds no plan"):
            verify(instance, document)
        return
    checked = verify(instance, document)
    assert checked.mismatches == ()
    assert checked.holds
    assert result.termination == "optimal"
    texts = [o.verified_exact for o in (result.objective, *result.then)]
    assert [str(value) for value in checked.values.values()] == texts
    # the least change of a claim is noticed
    document["objective"]["verified_exact"] = str(
        Fraction(document["objective"]["verified_exact"]) + Fraction(1, 10**30)
    )
    assert not verify(instance, document).holds
