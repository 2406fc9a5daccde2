"""Every rule about how a serving instance is built, from both sides, with its numbers."""

from __future__ import annotations

from typing import Any

import pytest

from instances import Instance, parse_instance
from optimizer.footprints import check_footprint
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint


def instance(model: Any = "qwen3-8b", **more: Any) -> Instance:
    server = {"name": "s", "accelerator": "h100-sxm", "num_cards": 8, "fabric": "nvlink-4"}
    cohort = {
        "name": "chat",
        "num_sessions": 1,
        "context_tokens": 1,
        "new_tokens": 1,
        **more.pop("cohort", {}),
    }
    return parse_instance(
        {
            "name": "legality",
            "model": model,
            "fleet": {"pools": [{"name": "pool", "server": server, "num_servers": 4}]},
            "workload": {"cohorts": [cohort]},
            "objective": {"minimise": ["cards"]},
            **more,
        }
    )


def footprint(stages: tuple[int, ...] = (), batch: int = 1, micro: int = 1, **d: int) -> Footprint:
    return Footprint("pool", ParallelConfig(**d), 1, "ring", stages, batch, micro)


def broken(problem: Instance, place: Footprint) -> list[tuple[str, int]]:
    return [(rule.rule, rule.amount) for rule in check_footprint(problem, place)]


ANY = dict.fromkeys(("tp", "pp", "ep", "cp", "dp", "dcp", "attention_copies"))


@pytest.mark.parametrize(
    ("field", "degrees", "shown"),
    [
        ("tp", {"tp": 2}, "TP2"),
        ("pp", {"pp": 2}, "PP2"),
        ("ep", {"tp": 2, "ep": 2}, "EP2"),
        ("cp", {"cp": 2}, "CP2"),
        ("dp", {"dp": 2}, "DP2"),
        ("dcp", {"tp": 8, "dcp": 2}, "DCP2"),
        ("attention_copies", {"copies": 2}, "attention_copies 2"),
    ],
)
def test_a_degree_must_be_among_those_that_the_search_lists(
    field: str, degrees: dict[str, int], shown: str
) -> None:
    stages = (47, 47) if "pp" in degrees else ()
    place = footprint(stages, **degrees)
    for listed, wanted in (((1, 4), [(field, 1)]), ((1, 2), []), (None, [])):
        search = {**ANY, field: listed}
        assert broken(instance("qwen3-235b-a22b", search=search), place) == wanted
    text = check_footprint(instance("qwen3-235b-a22b", search={**ANY, field: (1, 4)}), place)
    assert text[0].message == f"{shown} is not among search.{field}: 1, 4"


def test_a_batch_must_be_among_those_that_the_search_lists() -> None:
    assert broken(instance(search={"batch": [1, 4]}), footprint(batch=4)) == []
    assert broken(instance(search={"batch": [1, 4]}), footprint(batch=2)) == [("batch", 1)]


def test_batch_and_micro_batches_are_at_least_one() -> None:
    assert broken(instance(search={"batch": [1]}), footprint(batch=0)) == [
        ("batch", 1),
        ("batch", 1),
    ]
    assert ("batch", 1) in broken(instance(), footprint(micro=0))


def test_micro_batches_need_a_pipeline() -> None:
    problem = instance(search={"pp": [1, 2], "micro_batches": [1, 3]})
    assert broken(problem, footprint((18, 18), micro=3, pp=2)) == []
    assert broken(problem, footprint(micro=3)) == [("micro_batches", 2)]
    assert broken(problem, footprint((18, 18), micro=2, pp=2)) == [("micro_batches", 1)]


def test_sessions_with_a_prompt_are_served_one_at_a_time() -> None:
    cohort = {"prompt_tokens": 5}
    search = {"batch": [1, 4]}
    assert broken(instance(search=search, cohort=cohort), footprint()) == []
    found = broken(instance(search=search, cohort=cohort), footprint(batch=4))
    assert found == [("prompt_batch", 3)]
    assert broken(instance(search=search), footprint(batch=4)) == []


def test_sequence_parallelism_must_be_switched_on() -> None:
    place = footprint(tp=4, sp=4)
    assert broken(instance(search={"sequence_parallel": True}), place) == []
    assert broken(instance(), place) == [("sp", 1)]


def test_redundant_experts_are_as_many_as_are_wanted() -> None:
    search = {**ANY, "redundant_experts": True}
    problem = instance("qwen3-30b-a3b", search=search)
    # 128 experts: 3 groups need 1 more; none are wanted where 4 groups are equal anyway.
    assert broken(problem, footprint(dp=3, ep=3, redundant=1)) == []
    assert broken(problem, footprint(dp=4, ep=4)) == []
    found = check_footprint(problem, footprint(dp=4, ep=4, redundant=4))
    assert [(r.rule, r.amount) for r in found] == [("redundant_experts", 4)]
    assert found[0].message == "4 redundant experts where 0 are wanted"
    off = instance("qwen3-30b-a3b", search=ANY)
    assert broken(off, footprint(dp=3, ep=3, redundant=1)) == [("redundant_experts", 1)]
    assert broken(off, footprint(dp=3, ep=3)) == [("experts", 2)]


@pytest.mark.parametrize(
    ("stages", "amount"),
    [((), 36), ((36,), 1), ((18, 17), 1), ((18, 19), 1), ((36, 0), 1), ((12, 12, 12), 1)],
)
def test_stages_must_cut_all_layers_into_as_many_runs_as_pp(
    stages: tuple[int, ...], amount: int
) -> None:
    problem = instance(search={"pp": [2]})
    assert broken(problem, footprint((18, 18), pp=2)) == []
    assert broken(problem, footprint(stages, pp=2)) == [("stages", amount)]


def test_uneven_stages_need_an_engine_and_a_search_that_allow_them() -> None:
    search = {"pp": [2]}
    plain = {"name": "plain", "uneven_stages": False}
    even = {**search, "stage_cut": "even"}
    # The cut that lets most tokens fit is 18 and 18; the engine and the search do not mind another.
    assert broken(instance(search=search), footprint((18, 18), pp=2)) == []
    assert broken(instance(search=search), footprint((20, 16), pp=2)) == [("stage_cut", 2)]
    assert broken(instance(search=search, engine=plain), footprint((20, 16), pp=2)) == [
        ("uneven_stages", 4)
    ]
    assert broken(instance(search=even), footprint((20, 16), pp=2)) == [("uneven_stages", 4)]
    assert broken(instance(search=even), footprint((19, 17), pp=2)) == [("uneven_stages", 2)]
    assert broken(instance(search=search, engine=plain), footprint((19, 17), pp=2)) == [
        ("uneven_stages", 2)
    ]
    # One layer more is what does not divide.
    odd = {"pp": [7]}
    cut = (6, 5, 5, 5, 5, 5, 5)
    assert broken(instance(search=odd, engine=plain), footprint(cut, pp=7)) == []
    text = check_footprint(instance(search=search, engine=plain), footprint((20, 16), pp=2))
    assert text[0].message == "plain gives stages equally many layers, not 4 more"


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_every_engine_takes_a_list_of_layers_for_its_stages(name: str) -> None:
    problem = instance(search={"pp": [2]}, engine=name)
    assert broken(problem, footprint((30, 6), pp=2)) == [("stage_cut", 12)]
    text = check_footprint(problem, footprint((30, 6), pp=2))[0].message
    assert text == "the best cut has 18, 18 layers, not 30, 6"


def test_a_stage_may_have_to_hold_the_layers_whose_cache_it_reads() -> None:
    # V4.1-Flash: layers 9-13 read the entries of layer 8, layer 14 keeps its own.
    search = {**ANY, "kv_sharing": "same_stage"}
    model = "deepseek-v4.1-flash"
    assert broken(instance(model, search=search), footprint((14, 26), pp=2)) == []
    found = check_footprint(instance(model, search=search), footprint((10, 30), pp=2))
    assert [(r.rule, r.amount) for r in found] == [("kv_source", 1)]
    assert found[0].message == ("stage 1 reads the cache of layer 8, which an earlier stage holds")
    assert broken(instance(model, search=ANY), footprint((10, 30), pp=2)) == []


def test_a_meaningless_degree_is_reported_alone_with_what_the_search_lists() -> None:
    assert ("parallel", 1) in broken(instance(), footprint(tp=0))
    assert ("stages", 1) in broken(instance(search={"pp": None}), footprint(pp=37))
