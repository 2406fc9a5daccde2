"""Sessions of capacity plans: lanes, groups, memory, deadlines and failures, from both sides.

Times and bytes are those of `tests/unit/test_evaluate.py`: with TP1 two tokens after 10 take
6368 ns, in batches of two 7136 ns; TP1 has 3408 B of weights, 100 B of workspace, and a session
takes 12 · 32 = 384 B.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity_sessions import MODEL, NS, TP1, Case, broken, case, chat, judge, load
from instances import parse_instance
from optimizer.capacity.evaluation import evaluate_capacity
from optimizer.capacity.group_account import Accountant, OptionPrices
from optimizer.capacity.plan import CapacityPlan, GroupLoad, LaneLoad, ServerFill
from optimizer.timeline import run_queue

#: One server with two, and with four instances of option 0, TP1.
TWO, FOUR = (ServerFill(0, 1, ((0, 2),)),), (ServerFill(0, 1, ((0, 4),)),)


def test_groups_no_more_are_loaded_than_there_are() -> None:
    # 3 servers of 2 instances, of one group each, are 6
    plain, six = case(), (ServerFill(0, 3, ((0, 2),)),)
    assert broken(plain, six, [load(0, (0, 1), groups=6)]) == []
    assert broken(plain, six, [load(0, (0, 1), groups=4), load(0, groups=2)]) == []
    assert broken(plain, six, [load(0, (0, 1), groups=7)]) == [("groups", TP1, 1, "groups")]
    split = [load(0, (0, 1), groups=4), load(0, (0, 2), groups=3)]
    assert broken(plain, six, split) == [("groups", TP1, 1, "groups")]


def test_prices_may_be_shared_by_evaluations_of_one_problem() -> None:
    plain, plan = case(), CapacityPlan((), TWO, (load(0, (0, 3)),))
    prices = OptionPrices(plain.source, plain.problem)
    alone = evaluate_capacity(plain.source, plain.problem, plan)
    for _ in range(2):
        assert evaluate_capacity(plain.source, plain.problem, plan, prices) == alone


def test_groups_an_instance_with_dp_has_several() -> None:
    experts = {"kind": "moe", "num_experts": 4, "experts_per_token": 2, "expert_size": 4}
    attention = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2}
    group = {"name": "all", "layers": "0-1", "attention": attention, "ffn": experts}
    model = {"name": "moe", "hidden_size": 8, "vocab_size": 32, "groups": [group]}
    wide = case(models=[model], dp=[2], ep=[2])
    assert [o.num_groups for o in wide.problem.options] == [2]
    where = f"moe, {wide.problem.options[0].footprint.label()} on p"
    one = (ServerFill(0, 1, ((0, 1),)),)
    assert broken(wide, one, [load(0, (0, 1), groups=2)]) == []
    assert broken(wide, one, [load(0, (0, 1), groups=3)]) == [("groups", where, 1, "groups")]


def test_groups_of_an_instance_over_several_servers() -> None:
    wide = case(tp=[4], cards=2)
    where = f"tiny, {wide.problem.options[0].footprint.label()} on p"
    four = (ServerFill(0, 4, (), 0),)  # two instances of two servers
    assert broken(wide, four, [load(0, (0, 1), groups=2)]) == []
    assert broken(wide, four, [load(0, (0, 1), groups=3)]) == [("groups", where, 1, "groups")]


def test_lanes_a_group_has_as_many_as_its_batch() -> None:
    pairs = case(batch=[2])
    where = f"tiny, {pairs.problem.options[0].footprint.label()} on p"
    assert broken(pairs, TWO, [load(0, (0, 3), lanes=2)]) == []
    assert broken(pairs, TWO, [load(0, (0, 3), lanes=3)]) == [("lanes", where, 1, "lanes")]
    unlike = (LaneLoad(1, ((0, 1),)), LaneLoad(2, ((0, 2),)))
    assert broken(pairs, TWO, [GroupLoad(0, 1, unlike)]) == [("lanes", where, 1, "lanes")]
    assert broken(pairs, TWO, [GroupLoad(0, 1, unlike[:1])]) == []


def test_memory_a_group_holds_all_sessions_of_its_lanes_to_the_byte() -> None:
    # 3408 + 100 + 3 · 384 = 4660 B, and 384 more for a fourth session
    for memory, over in ((4660, 0), (4659, 1)):
        expected = [("memory", TP1, over, "B")] if over else []
        small = case(memory=memory)
        assert broken(small, TWO, [load(0, (0, 3))]) == expected
        assert broken(small, TWO, [load(0, (0, 1), (0, 2))]) == expected
        more = broken(small, TWO, [load(0, (0, 4))])
        assert more == [("memory", TP1, 384 + over, "B")]
    # two lanes with 2 and 1: the same three sessions
    lanes = (LaneLoad(1, ((0, 2),)), LaneLoad(1, ((0, 1),)))
    for memory, over in ((4660, 0), (4659, 1)):
        pairs = case(memory=memory, batch=[2])
        assert [o.num_lanes for o in pairs.problem.options] == [2]
        found = broken(pairs, TWO, [GroupLoad(0, 1, lanes)])
        assert [(rule, by) for rule, _, by, _ in found] == ([("memory", 1)] if over else [])


def test_late_a_session_may_end_at_its_deadline_but_not_a_nanosecond_later() -> None:
    # three in a row end after 6368, 12736 and 19104 ns
    for deadline, over in (("19104ns", 0), ("19103ns", 1), ("12735ns", 6369)):
        due = case(chat(deadline_s=deadline))
        expected = [("late", f"chat on {TP1}", over * NS, "s")] if over else []
        assert broken(due, TWO, [load(0, (0, 3))]) == expected
    result = judge(case(chat(deadline_s="12735ns")), TWO, [load(0, (0, 3))])
    assert result.sessions == (1,)
    text = "2 sessions of a lane are late, by up to 6.369e-06 s"
    assert [v.message for v in result.violations] == [f"chat on {TP1}: {text}"]
    assert judge(case(chat(deadline_s="12736ns")), TWO, [load(0, (0, 3))]).sessions == (2,)


def test_late_the_period_ends_what_has_no_deadline() -> None:
    for period, over in (("12736ns", 0), ("12735ns", 1)):
        for cohort in (chat(), chat(deadline_s="1s")):
            expected = [("late", f"chat on {TP1}", over * NS, "s")] if over else []
            assert broken(case(cohort, period=period), TWO, [load(0, (0, 2))]) == expected
    assert broken(case(), TWO, [load(0, (0, 10))]) == []


def test_late_sessions_wait_for_their_release_and_for_those_before_them() -> None:
    # Released at 10000 ns, "b" ends at 16368; after two of "a" (12736) it ends at 19104, and "a"
    # after it at 16368 + 6368 = 22736.
    def two(a: int, b: int) -> Case:
        later = chat(name="b", release_s="10000ns", deadline_s=f"{b}ns")
        return case(chat(name="a", deadline_s=f"{a}ns"), later)

    on_a, on_b = f"a on {TP1}", f"b on {TP1}"
    assert broken(two(12736, 16368), FOUR, [load(0, (0, 1), (1, 1))]) == []
    assert broken(two(12736, 19104), FOUR, [load(0, (0, 2), (1, 1))]) == []
    found = broken(two(12736, 19103), FOUR, [load(0, (0, 2), (1, 1))])
    assert found == [("late", on_b, NS, "s")]
    assert broken(two(22736, 16368), FOUR, [load(0, (1, 1), (0, 1))]) == []
    found = broken(two(22735, 16368), FOUR, [load(0, (1, 1), (0, 1))])
    assert found == [("late", on_a, NS, "s")]
    # of two runs of one cohort the later one says by how much
    found = broken(two(6367, 99999), FOUR, [load(0, (0, 1), (1, 1), (0, 1))])
    assert found == [("late", on_a, (22736 - 6367) * NS, "s")]


def test_cannot_serve_sessions_of_another_model() -> None:
    models = [MODEL, {**MODEL, "name": "other"}]
    two = case(chat(name="a"), chat(name="b", model="other"), models=models)
    assert [o.model for o in two.problem.options] == [0, 1]
    both = (ServerFill(0, 2, ((0, 2), (1, 2))),)
    assert broken(two, both, [load(0, (0, 1)), load(1, (1, 1))]) == []
    found = broken(two, both, [load(0, (0, 1), (1, 3), groups=2)])
    assert found == [("cannot_serve", f"b on {TP1}", 2 * 3, "sessions")]
    assert judge(two, both, [load(0, (0, 1), (1, 3), groups=2)]).sessions == (2, 0)


def test_cannot_serve_sessions_that_may_not_use_the_pool() -> None:
    two = case(chat(name="a"), chat(name="b", pools=["q"]), pools=("p", "q"))
    assert [o.pool for o in two.problem.options] == [0, 1]
    both = (ServerFill(0, 1, ((0, 1),)), ServerFill(1, 1, ((1, 1),)))
    assert broken(two, both, [load(0, (0, 1)), load(1, (1, 1))]) == []
    found = broken(two, both, [load(0, (0, 1), (1, 1))])
    assert found == [("cannot_serve", f"b on {TP1}", 1, "sessions")]


def test_sessions_as_many_are_taken_as_must_be_and_no_more_than_there_are() -> None:
    # 75% of 6 sessions are 4.5, so 5 must be taken
    part = case(chat(6, min_on_time_fraction="75%"))
    for taken, off in ((4, 1), (5, 0), (6, 0), (7, 1), (9, 3)):
        expected = [("sessions", "cohort chat", off, "sessions")] if off else []
        assert broken(part, TWO, [load(0, (0, taken))]) == expected
    assert broken(part, TWO, []) == [("sessions", "cohort chat", 5, "sessions")]
    # 2 groups of 3 are 6
    assert broken(part, TWO, [load(0, (0, 3), groups=2)]) == []


def test_unknown_and_negative_of_loads_are_named_and_take_no_further_part() -> None:
    plain, good = case(), load(0, (0, 1))
    assert broken(plain, TWO, [good, load(0, (0, 0)), load(0, (0, 1), groups=0)]) == []
    for index in (-1, 1, 10**400):
        found = broken(plain, TWO, [good, load(index, (0, 1))])
        assert found == [("unknown", "loads[1]", 1, "options")]
        found = broken(plain, TWO, [good, load(0, (index, 1))])
        assert found == [("unknown", "loads[1]", 1, "cohorts")]
    for wrong, unit in (
        (load(0, (0, 1), groups=-2), "groups"),
        (load(0, (0, 1), lanes=-2), "lanes"),
        (load(0, (0, -2)), "sessions"),
    ):
        result = judge(plain, TWO, [good, wrong])
        found = [(v.rule, v.where, v.amount, v.unit) for v in result.violations]
        assert found == [("negative", "loads[1]", 2, unit)]
        assert result.sessions == (1,)


def test_sessions_of_all_lanes_and_all_groups_are_counted() -> None:
    pairs = case(chat(100, deadline_s="14272ns"), batch=[2])
    # two in a row of 7136 ns are on time, a third is not
    lanes = (LaneLoad(1, ((0, 1), (0, 1))), LaneLoad(1, ((0, 3),)))
    result = judge(pairs, FOUR, [GroupLoad(0, 2, lanes), load(0, (0, 1), lanes=2)])
    assert result.sessions == (2 * (2 + 2) + 2,)
    assert [(r.used, r.most) for r in result.resources if r.name == "sessions of chat"] == [
        (2 * (2 + 3) + 2, 100)
    ]


def test_an_option_without_a_meaning_serves_nobody() -> None:
    plain = case()
    option = plain.problem.options[0]
    # three stages of two layers, or four quarters of a head
    for wrong in ({"pp": 3}, {"tp": 8}, {"tp": 0}):
        parallel = replace(option.footprint.parallel, **wrong)
        built = replace(option, footprint=replace(option.footprint, parallel=parallel))
        odd = Case(plain.source, replace(plain.problem, options=(built,)))
        found = {
            v.rule for v in judge(odd, (ServerFill(0, 1, ((0, 1),)),), [load(0, (0, 1))]).violations
        }
        assert "cannot_serve" in found
        assert len(found) > 1


def test_an_option_whose_pool_cannot_compute_its_model_serves_nobody() -> None:
    plain = case()
    without = plain.source.model_dump(mode="json")
    card = without["fleet"]["pools"][0]["server"]["accelerator"]
    card["peak_flops_per_s"] = {"fp8": "1PFLOP/s"}
    other = Case(parse_instance(without), plain.problem)
    assert broken(other, TWO, [load(0, (0, 3))]) == [
        ("pool", TP1, 1, "options"),
        ("cannot_serve", f"chat on {TP1}", 3, "sessions"),
    ]


def test_ten_million_sessions_in_one_lane_are_not_run_one_by_one() -> None:
    many = case(chat(10**7, deadline_s="63680ms"), memory=10**12)
    result = judge(many, TWO, [load(0, (0, 10**7))])
    # 10^7 · 6368 ns = 63.68 s; a session takes 384 B
    assert result.is_feasible
    assert result.sessions == (10**7,)
    held = {r.name: r.used for r in result.resources}
    assert held[f"memory of {TP1}"] == 3508 + 384 * 10**7
    late = case(chat(10**7, deadline_s="63679999999ns"), memory=10**12)
    assert broken(late, TWO, [load(0, (0, 10**7))]) == [("late", f"chat on {TP1}", NS, "s")]
    assert judge(late, TWO, [load(0, (0, 10**7))]).sessions == (10**7 - 1,)


RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=5)
TIMES = st.tuples(st.integers(0, 40_000), st.integers(1, 120_000))


@settings(max_examples=60, deadline=None, database=None)
@given(runs=RUNS, times=st.lists(TIMES, min_size=3, max_size=3))
def test_a_lane_ends_as_its_sessions_do_one_by_one(
    runs: list[tuple[int, int]], times: list[tuple[int, int]]
) -> None:
    lengths = ((10, 2), (10, 1), (40, 3))
    cohorts = [
        chat(100, str(i), context_tokens=context, new_tokens=new)
        for i, (context, new) in enumerate(lengths)
    ]
    plain = case(*cohorts)
    demands = tuple(
        replace(demand, release_s=release * NS, deadline_s=(release + within) * NS)
        for demand, (release, within) in zip(plain.problem.cohorts, times, strict=True)
    )
    problem = replace(plain.problem, cohorts=demands)
    prices = OptionPrices(plain.source, problem)
    stretches = Accountant(problem, prices).lane(0, tuple(runs))
    jobs = []
    for cohort, number in runs:
        service_s = prices.service_s(0, cohort)
        assert service_s is not None
        jobs += [(cohort, (demands[cohort].release_s, service_s))] * number
    ends = [run.finish_s for run in run_queue([job for _, job in jobs], ())]
    first = 0
    for (cohort, number), stretch in zip(runs, stretches, strict=True):
        mine, due = ends[first : first + number], demands[cohort].deadline_s
        assert due is not None
        assert stretch.num_on_time == sum(end <= due for end in mine)
        assert stretch.late_by_s == max(mine[-1] - due, Fraction(0))
        first += number


@pytest.mark.parametrize("batch", [1, 2])
def test_prices_of_options_agree_with_those_of_the_problem(batch: int) -> None:
    cohorts = chat(name="a"), chat(name="b", context_tokens=100)
    wide = case(*cohorts, tp=[1, 2, 4], pp=[1, 2], batch=[batch])
    assert {option.footprint.parallel.pp for option in wide.problem.options} == {1, 2}
    prices = OptionPrices(wide.source, wide.problem)
    for option in wide.problem.options:
        for c, service_s in enumerate(option.service_s):
            assert prices.service_s(option.index, c) == service_s
        for counts in ({0: 3}, {1: 2}, {0: 1, 1: 1}, {}):
            held, usable = prices.card_bytes(option.index, counts)
            free = min(
                row.free_bytes - sum(n * row.session_bytes[c] for c, n in counts.items())
                for row in option.memory
            )
            assert usable - held == free
