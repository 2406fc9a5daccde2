"""Measured session times take the place of modelled ones, alike for evaluator, tables and oracle.

The model of `test_both_sides.py`: a session takes 1600 ns on TP1, 1200 on TP2 with rings (1224 with
trees, 900 with a measured table that covers its message of 12 B).
"""

from __future__ import annotations

import time
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from formulations.cpsat_engine import CpSatDeployment
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances import InputError, Instance, parse_instance
from instances.measurements import MeasuredSession
from optimizer.collectives import CollectiveUnavailable
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively
from optimizer.exhaustive_queues import footprints
from optimizer.footprint_prices import FootprintPrices, service_time_s
from optimizer.generate import tiny_instance
from optimizer.measured import matches, measured_session_s
from optimizer.objectives import objective_terms
from optimizer.options import SolveOptions
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.pricing import build_tables
from optimizer.protocols import Formulation, SolveRequest, Termination
from optimizer.screening import SCREEN_FROM
from optimizer.solve import solve

Json = dict[str, Any]
NS = Fraction(1, 10**9)
BACKENDS: tuple[type[Formulation], ...] = (CpSatDeployment, HighsDeployment, CbcDeployment)
TP1 = Footprint("p", ParallelConfig(), 1, "none")
RING = Footprint("p", ParallelConfig(tp=2), 1, "ring")
TREE = Footprint("p", ParallelConfig(tp=2), 1, "tree")
TABLE = Footprint("p", ParallelConfig(tp=2), 1, "measured")


def problem(*measurements: Json, covers: int | None = None, **more: Any) -> Instance:
    """Return a pool "p" of one server of two cards; `covers` is the last message of a table."""
    widths = {"hidden_size": 12, "head_dim": 1, "ffn_size": 20, "vocab_size": 28}
    formats = dict.fromkeys(("weights", "embeddings", "kv", "activations"), "fp8")
    model = {"name": "m", "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, **widths}
    card = {
        "name": "card",
        "memory_bytes": 10**12,
        "memory_bandwidth_bytes_per_s": "1GB/s",
        "peak_flops_per_s": {"fp8": "1000000TFLOP/s"},
    }
    rows = [{"message_bytes": covers, "time_s": "50ns"}]
    tables = [{"name": "table", "ranks": 2, "servers": 1, "rows": rows}] if covers else []
    fabric = {"name": "fabric", "alpha_s": "94ns", "bandwidth_bytes_per_s": "1GB/s"}
    fabric |= {"measured": tables}
    server = {"name": "s", "accelerator": card, "num_cards": 2, "fabric": fabric}
    pool = {"name": "p", "server": server, "num_servers": more.pop("servers", 1)}
    cohort = {"name": "a", "num_sessions": 1, "context_tokens": 99, "new_tokens": 1}
    cohorts = [cohort | extra for extra in more.pop("cohorts", ({},))]
    return parse_instance(
        {
            "name": "measured",
            "model": {**model, "formats": formats},
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": cohorts, "min_on_time_fraction": 0},
            "runtime": {"workspace_bytes": 28},
            "objective": {"minimise": "makespan"},
            "search": more.pop("search", {}),
            "measurements": list(measurements),
            **more,
        }
    )


def services(instance: Instance) -> dict[Footprint, tuple[Fraction, ...]]:
    """Return service times in ns by the tables, after the evaluator has confirmed them."""
    prices, found = FootprintPrices(instance), {}
    for candidate in build_tables(instance, keep_all=True).candidates:
        times = [prices.service_s(candidate.footprint, c) for c in instance.workload.cohorts]
        assert candidate.service_s == tuple(times)
        found[candidate.footprint] = tuple(s / NS for s in candidate.service_s)
    return found


def agreed(instance: Instance, nanoseconds: int | Fraction) -> Footprint:
    """Check the least makespan by brute force, all backends and `evaluate`; return how."""
    oracle, tables = solve_exhaustively(instance), build_tables(instance)
    assert oracle.values == (nanoseconds * NS,)
    assert oracle.plan is not None
    plans = [oracle.plan]
    for backend in BACKENDS:
        request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 60)
        outcome = backend().solve(request)
        assert outcome.selection is not None
        assert outcome.claims[0].value == nanoseconds * NS
        plans.append(plan_of(tables, outcome.selection))
    for plan in plans:
        judged = evaluate(instance, plan)
        assert judged.violations == ()
        assert judged.makespan_s == nanoseconds * NS
    (used,) = {serving.footprint for plan in plans for serving in plan}
    return used


def test_the_model_alone() -> None:
    assert services(problem()) == {TP1: (1600,), RING: (1200,), TREE: (1224,)}
    assert services(problem(covers=12))[TABLE] == (900,)
    assert agreed(problem(), 1200) == RING
    assert problem().sha256() == problem(*[]).sha256()


@pytest.mark.parametrize(
    ("measured", "nanoseconds", "used"),
    [
        ({"session_s": "1199ns"}, 1199, TP1),  # all degrees 1: of TP1
        ({"session_s": "1201ns"}, 1200, RING),
        ({"session_s": "3us"}, 1200, RING),
        ({"tp": 2, "session_s": "1601ns"}, 1600, TP1),  # any collective
        ({"tp": 2, "session_s": "1599ns"}, 1599, RING),
        ({"tp": 2, "collective": "ring", "session_s": "1300ns"}, 1224, TREE),
        ({"tp": 2, "collective": "tree", "session_s": "1ns"}, 1, TREE),
        ({"tp": 2, "collective": "none", "session_s": "1ns"}, 1200, RING),
        ({"collective": "none", "session_s": "7ns"}, 7, TP1),
        ({"collective": "ring", "session_s": "7ns"}, 1200, RING),
        ({"tp": 4, "session_s": "1ns"}, 1200, RING),  # no such footprint
    ],
)
def test_a_measured_time_replaces_the_modelled_one_everywhere(
    measured: Json, nanoseconds: int, used: Footprint
) -> None:
    assert agreed(problem(measured), nanoseconds) == used


def test_of_several_matches_the_first_counts() -> None:
    ring = {"tp": 2, "collective": "ring", "session_s": "1100ns"}
    rest = {"tp": 2, "session_s": "1000ns"}
    assert services(problem(ring, rest)) == {TP1: (1600,), RING: (1100,), TREE: (1000,)}
    assert services(problem(rest, ring)) == {TP1: (1600,), RING: (1000,), TREE: (1000,)}


def test_cohorts_may_be_measured_apart() -> None:
    """b, after 199 tokens, reads 400 B more: 2000 ns on TP1, 1000 + 400 on TP2."""
    two = ({}, {"name": "b", "context_tokens": 199})
    assert services(problem(cohorts=two))[TP1] == (1600, 2000)
    of_b = {"cohort": "b", "session_s": "11ns"}
    assert services(problem(of_b, cohorts=two))[TP1] == (1600, 11)
    assert services(problem(of_b, {"session_s": "5ns"}, cohorts=two))[TP1] == (5, 11)
    assert services(problem({"session_s": "5ns"}, cohorts=two))[TP1] == (5, 5)
    assert services(problem(of_b, cohorts=two))[RING] == (1200, 1400)


def test_a_prompt_and_all_tokens_are_part_of_a_measured_time() -> None:
    long = ({"prompt_tokens": 50, "new_tokens": 7},)
    assert services(problem(cohorts=long))[TP1] != (777,)
    assert services(problem({"session_s": "777ns"}, cohorts=long))[TP1] == (777,)


def _measured(**fields: Any) -> MeasuredSession:
    return MeasuredSession(session_s=Fraction(1), **fields)


FOOTPRINT = Footprint(
    "p", ParallelConfig(dp=2, pp=3, tp=4, cp=5, ep=6, sp=4, dcp=7, copies=8), 2, "ring", (), 9, 10
)
SHAPE = {"dp": 2, "pp": 3, "tp": 4, "cp": 5, "ep": 6, "sp": 4, "dcp": 7}
SHAPE |= {"attention_copies": 8, "batch": 9, "micro_batches": 10}
PLACE = {"pool": "p", "cohort": "a", "num_servers": 2, "collective": "ring"}


def test_a_measurement_matches_by_degrees_place_and_cohort() -> None:
    assert matches(_measured(**SHAPE), FOOTPRINT, "a")
    assert matches(_measured(**SHAPE, **PLACE), FOOTPRINT, "a")
    for name, value in SHAPE.items():
        assert not matches(_measured(**{**SHAPE, name: value + 1}), FOOTPRINT, "a"), name
        left_out = {k: v for k, v in SHAPE.items() if k != name}
        assert not matches(_measured(**left_out), FOOTPRINT, "a"), name
    others = {"pool": "q", "cohort": "b", "num_servers": 1, "collective": "tree"}
    for name, value in others.items():
        assert matches(_measured(**SHAPE, **{**PLACE, name: None}), FOOTPRINT, "a"), name
        assert not matches(_measured(**SHAPE, **{**PLACE, name: value}), FOOTPRINT, "a"), name


def test_the_cut_and_spare_experts_are_not_told_apart() -> None:
    cut = Footprint("p", ParallelConfig(pp=2, redundant=3), 1, "none", (1, 3))
    assert matches(_measured(pp=2), cut, "a")


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"pool": "q"}, "measurements[0].pool: no pool is named 'q'"),
        ({"cohort": "b"}, "measurements[0].cohort: no cohort is named 'b'"),
        ({"session_s": 0}, "measurements[0].session_s = 0"),
        ({"session_s": "-1s"}, "measurements[0].session_s = '-1s'"),
        ({"spread_s": "10ns"}, "measurements[0]: spread_s must be less than session_s"),
        ({"spread_s": "11ns"}, "measurements[0]: spread_s must be less than session_s"),
        ({"spread_s": "-1ns"}, "measurements[0].spread_s = '-1ns'"),
        ({"tp": 0}, "measurements[0].tp = 0"),
        ({"tp": "2"}, "measurements[0].tp = '2'"),
        ({"batch": 0}, "measurements[0].batch = 0"),
        ({"num_servers": 0}, "measurements[0].num_servers = 0"),
        ({"collective": "star"}, "measurements[0].collective = 'star'"),
        ({"pool": ""}, "measurements[0].pool = ''"),
        ({"degree": 2}, "measurements[0].degree = 2: no such field"),
    ],
)
def test_a_wrong_measurement_is_refused_in_one_line(measured: Json, said: str) -> None:
    with pytest.raises(InputError) as caught:
        problem({"session_s": "10ns"} | measured)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_measurement_needs_a_time_and_may_say_its_spread_and_source() -> None:
    with pytest.raises(InputError, match=r"measurements\[0\]\.session_s: .*required"):
        problem({"tp": 1})
    given = {"session_s": "10ns", "spread_s": "9.9ns", "source": "a day in May"}
    instance = problem(given)
    assert instance.measurements[0].spread_s == Fraction(99, 10) * NS
    assert parse_instance(instance.model_dump(mode="json")) == instance
    assert services(instance)[TP1] == (10,)


def test_rows_of_a_measured_collective_have_a_spread_below_their_time() -> None:
    data = problem(covers=12).model_dump(mode="json")
    row = data["fleet"]["pools"][0]["server"]["fabric"]["measured"][0]["rows"][0]
    assert row["spread_s"] == 0
    row["spread_s"] = "49.9ns"
    assert services(parse_instance(data))[TABLE] == (900,)  # a spread is no time
    for spread in ("50ns", "1s"):
        row["spread_s"] = spread
        with pytest.raises(InputError, match=r"rows\[0\]: spread_s must be less than time_s"):
            parse_instance(data)


def test_a_measured_time_makes_no_collective_available() -> None:
    """The table ends below the message of 12 B: there is nothing that could have been timed."""
    instance = problem({"tp": 2, "session_s": "1ns"}, covers=11, search={"collectives": ["ring"]})
    assert TABLE not in services(instance)
    short = problem({"tp": 2, "session_s": "1ns"}, covers=11, search={"collectives": ["measured"]})
    assert agreed(short, 1600) == TP1
    cohort, pool = short.workload.cohorts[0], short.fleet.pools[0]
    with pytest.raises(CollectiveUnavailable):
        service_time_s(short, pool, TABLE, cohort)
    assert FootprintPrices(short).service_s(TABLE, cohort) is None


@pytest.mark.parametrize("covers", [120, 119])
def test_a_measured_time_needs_a_collective_for_the_prompt_too(covers: int) -> None:
    """A prompt of 10 tokens makes a message of 120 B; steps of 12 B are covered either way."""
    prompt = ({"prompt_tokens": 10},)
    measured = {"tp": 2, "session_s": "1ns"}
    instance = problem(
        measured, covers=covers, cohorts=prompt, search={"collectives": ["measured"]}
    )
    is_covered = covers == 120
    assert (TABLE in services(instance)) == is_covered
    prices, cohort = FootprintPrices(instance), instance.workload.cohorts[0]
    assert (prices.service_s(TABLE, cohort) is None) != is_covered
    if is_covered:
        assert measured_session_s(instance, TABLE, cohort) == NS
    else:
        with pytest.raises(CollectiveUnavailable):
            measured_session_s(instance, TABLE, cohort)
    modelled = prices.service_s(TP1, cohort)
    assert modelled is not None
    assert agreed(instance, 1 if is_covered else modelled / NS) == (TABLE if is_covered else TP1)


def test_a_measured_time_makes_no_room_and_no_degree_legal() -> None:
    data = problem({"session_s": "1ns"}).model_dump(mode="json")
    card = data["fleet"]["pools"][0]["server"]["accelerator"]
    card["memory_bytes"] = 1999  # TP1 needs 2000 B
    assert agreed(parse_instance(data), 1200) == RING
    data["search"]["tp"] = [1]
    found = solve(parse_instance(data), SolveOptions(threads=1))
    assert (found.termination, found.plan) == ("infeasible", None)


def test_large_searches_keep_what_is_fast_by_measurement_alone() -> None:
    """Screening with arrays knows no measured times, so it must not thin out by time."""
    search = {"tp": [1, 2], "batch": list(range(1, 61))}
    slow = {"cohorts": ({"num_sessions": 2},), "search": search}
    plain = problem(**slow)
    assert len(list(footprints(plain))) >= SCREEN_FROM
    measured = problem({"tp": 2, "batch": 57, "session_s": "1ns"}, **slow)
    found = solve(measured, SolveOptions(threads=1))
    assert found.termination == "optimal"
    assert found.objective.verified_exact == "1/1000000000"
    assert found.plan is not None
    assert found.plan.groups[0].batch == 57


def drawn(rng: Random, instance: Instance) -> tuple[MeasuredSession, ...]:
    """Return measured times of some footprints, near what the model says, some of them wide."""
    allowed, prices = list(footprints(instance)), FootprintPrices(instance)
    found = []
    for footprint in rng.sample(allowed, min(len(allowed), rng.randint(1, 4))):
        shape, cohort = footprint.parallel, rng.choice(instance.workload.cohorts)
        modelled = prices.service_s(footprint, cohort) or Fraction(rng.randint(1, 99), 10**5)
        tenths = max(1, round(modelled * rng.randint(3, 20) * 10**6))
        degrees = {n: getattr(shape, n) for n in ("tp", "pp", "cp", "dp", "ep", "sp", "dcp")}
        place = {
            "pool": footprint.pool,
            "cohort": cohort.name,
            "num_servers": footprint.num_servers,
            "collective": footprint.collective,
        }
        found.append(
            MeasuredSession(
                **degrees,
                **{name: value for name, value in place.items() if rng.random() < 0.5},
                attention_copies=shape.copies,
                batch=footprint.batch,
                micro_batches=footprint.micro_batches,
                session_s=Fraction(tenths, 10**7),
            )
        )
    return tuple(found)


def check(instance: Instance, backends: tuple[type[Formulation], ...]) -> None:
    expected, tables = solve_exhaustively(instance).values, build_tables(instance)
    prices = FootprintPrices(instance)
    for c in tables.candidates:
        times = tuple(prices.service_s(c.footprint, one) for one in instance.workload.cohorts)
        assert times == c.service_s
    for backend in backends:
        where = f"{instance.name} {backend.__name__}"
        request = SolveRequest(tables, objective_terms(instance), time.monotonic() + 30)
        found = backend().solve(request)
        if expected is None:
            assert found.termination is Termination.INFEASIBLE, where
            continue
        assert found.termination is Termination.OPTIMAL, where
        assert tuple(claim.value for claim in found.claims) == expected, where
        assert found.selection is not None
        assert evaluate(instance, plan_of(tables, found.selection)).violations == (), where


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_measured_times_agree_with_brute_force(first: int) -> None:
    for seed in range(first, first + 10):
        instance = tiny_instance(seed)
        measurements = drawn(Random(seed), instance)
        changed = Instance.model_validate({**dict(instance), "measurements": measurements})
        check(changed, BACKENDS if seed % 3 == 0 else BACKENDS[:2])
