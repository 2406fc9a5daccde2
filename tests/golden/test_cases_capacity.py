"""Public bug reports about fleets, retold as capacity decisions; and the fleet of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from instances import InputError, parse_instance
from optimizer import SolveOptions
from optimizer.side.capacity_accounts import CapacityAccountDocument
from optimizer.side.decisions import solve_side
from optimizer.side.result import SideResultDocument

LONG = {"context_tokens": 131_064, "new_tokens": 8}
SHORT = {"context_tokens": 8192, "new_tokens": 8}


def asked(
    *cohorts: dict[str, Any], pools: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """Write an instance: cohorts, pools (four HGX H100 unless given), and what else is needed."""
    pools = pools or [{"name": "hgx", "server": "hgx-h100", "num_servers": 4}]
    return {
        "name": "case",
        "decision": "capacity",
        "fleet": {"pools": pools, "mode": more.pop("mode", "existing")},
        "workload": {"cohorts": list(cohorts)},
        "search": {"tp": more.pop("tp", None), "collectives": ["ring"], **more.pop("search", {})},
        "capacity": {"goals": more.pop("goals", ["sessions"])},
        **more,
    }


def decided(document: dict[str, Any]) -> SideResultDocument:
    result = solve_side(parse_instance(document), SolveOptions(threads=1))
    assert result.termination in ("optimal", "infeasible")
    assert result.certificate.second_opinion.agrees is True
    return result


def account(result: SideResultDocument) -> CapacityAccountDocument:
    assert result.termination == "optimal"
    assert result.evaluation is not None
    assert result.evaluation.violations == []
    assert result.evaluation.capacity is not None
    return result.evaluation.capacity


def taken(result: SideResultDocument) -> dict[str, int]:
    return {cohort.name: cohort.taken for cohort in account(result).cohorts}


def eights_and_twos(num_eights: int, num_twos: int, share: str) -> dict[str, Any]:
    """One session of Qwen3-235B needs TP8 for 31 ms of 40, one of Qwen3-32B TP2 for 119 of 130."""
    return asked(
        {"name": "eight", "model": "qwen3-235b-a22b", "num_sessions": num_eights, **SHORT}
        | {"deadline_s": "40ms", "min_on_time_fraction": share},
        {"name": "two", "model": "qwen3-32b", "num_sessions": num_twos, **LONG}
        | {"deadline_s": "130ms", "min_on_time_fraction": share},
        models=["qwen3-235b-a22b", "qwen3-32b"],
        tp=[2, 8],
    )


def test_d14_fifty_cards_are_not_to_be_had_on_32() -> None:
    """ai-dynamo/dynamo#8583: five instances of 8 cards and five of 2. It is refused, not planned.

    Not only the sum is too large: five instances of eight cards need five servers.
    """
    result = decided(eights_and_twos(5, 5, "100%"))
    assert result.termination == "infeasible"
    assert result.plan is None
    assert result.reason


def test_d14_what_fits_fills_the_32_cards_and_no_more() -> None:
    """8a + 2b ≤ 32 and an eight is a server: a = 3, b = 4 (or a = 2, b = 5) serve seven of ten.

    At least a fifth of each kind must be served: with 4 + 0 the plan would be broken.
    """
    result = decided(eights_and_twos(5, 5, "20%"))
    found = taken(result)
    assert sum(found.values()) == 7
    assert found in ({"eight": 3, "two": 4}, {"eight": 2, "two": 5})
    cards = sum(item.number * item.num_cards for item in account(result).instances)
    assert cards <= 32


@pytest.mark.parametrize(("num_twos", "termination"), [(4, "optimal"), (5, "infeasible")])
def test_d14_the_last_server_holds_four_twos_beside_three_eights(
    num_twos: int, termination: str
) -> None:
    """3 · 8 + 4 · 2 = 32; a fifth pair has no server, although TP8 would serve three in turn.

    TP8 in the last server would serve 3 sessions of 41.2 ms, TP2 four of 119.1.
    """
    assert decided(eights_and_twos(3, num_twos, "100%")).termination == termination


def test_separate_caps_hold_for_each_pool() -> None:
    """ai-dynamo/aiconfigurator pull request 709: at most 4 cards for one kind and 12 for another.

    TP2 has one session on time: two on the first pool and six on the second, not five and three.
    """
    pools = [
        {"name": name, "server": {"base": "hgx-h100", "num_cards": 4}, "num_servers": servers}
        for name, servers in (("prefill", 1), ("decode", 3))
    ]
    cohorts = [
        {"name": name, "num_sessions": 9, **LONG, "deadline_s": "130ms", "pools": [name]}
        | {"min_on_time_fraction": 0}
        for name in ("prefill", "decode")
    ]
    result = decided(asked(*cohorts, pools=pools, model="qwen3-32b", tp=[2]))
    assert taken(result) == {"prefill": 2, "decode": 6}


def test_a_pool_that_is_not_there_is_refused_before_anything_is_solved() -> None:
    cohort = {"name": "c", "num_sessions": 1, **LONG, "pools": ["hpc"]}
    with pytest.raises(InputError, match=r"workload\.cohorts\[0\]\.pools: no pool is named 'hpc'"):
        parse_instance(asked(cohort, model="qwen3-32b"))


@pytest.mark.parametrize(("server", "servers"), [("hgx-h200", 1), ("hgx-h100", 2)])
def test_a_671_gb_model_takes_one_server_of_h200_and_two_of_h100(server: str, servers: int) -> None:
    """configiq#89 advised eleven servers where one holds the model.

    DeepSeek-R1 in FP8: 671 GB over 8 cards are 84 GB, within 141 GB of H200 but not 80 GB of H100;
    over 16 cards of two servers 42 GB.
    """
    pool = {"name": "p", "server": server, "num_servers": 12, "fabric_between": "infiniband-ndr"}
    cohort = {"name": "chat", "num_sessions": 1, **SHORT}
    result = decided(
        asked(
            cohort,
            pools=[pool],
            mode="purchase",
            model="deepseek-r1",
            tp=[8, 16],
            goals=["servers"],
        )
    )
    assert [item.servers for item in account(result).servers] == [servers]
    (used,) = [item for item in account(result).instances if item.number]
    assert (used.number, used.num_cards) == (1, 8 * servers)


@pytest.mark.parametrize(("batch", "cards"), [(86, 3), (85, 4)])
def test_256_sessions_on_three_cards_need_room_for_86_on_one(batch: int, cards: int) -> None:
    """ai-dynamo/aiconfigurator#1560: 256 are 86 + 85 + 85; three times 85 are one too few.

    Each lane has time for one session: weights and 86 caches are read in 12.3 ms of 14.
    """
    cohort = {"name": "chat", "num_sessions": 256, "context_tokens": 2048, "new_tokens": 1}
    cohort["deadline_s"] = "14ms"
    document = asked(
        cohort,
        model="qwen3-8b",
        tp=[1],
        search={"batch": [batch]},
        goals=["cards"],
    )
    result = decided(document)
    assert sum(item.number * item.num_cards for item in account(result).instances) == cards


@pytest.mark.parametrize(("deadline", "termination"), [("13ms", "infeasible"), ("40ms", "optimal")])
def test_d15_a_deadline_is_a_rule_and_a_bound_says_when_it_cannot_hold(
    deadline: str, termination: str
) -> None:
    """Qwen3-32B in BF16, 65.5 GB over eight H200 of 4.8 TB/s: 1.7 ms a token, 13.6 for eight."""
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": 2048, "new_tokens": 8}
    pools = [{"name": "h200", "server": "hgx-h200", "num_servers": 4}]
    result = decided(
        asked(cohort | {"deadline_s": deadline}, pools=pools, model="qwen3-32b", tp=[1, 2, 4, 8])
    )
    assert result.termination == termination
    assert bool(result.reason) is (termination == "infeasible")


def test_the_fleet_of_the_readme_takes_five_servers() -> None:
    """16 documents need 16 cards, a server for every eight; 360 of 400 chats 23 cards of 16 each.

    39 cards are five servers: 5 · 55.04 = 275.2. The 24 cards left serve 384 chats, so 400 in all.
    Half of each is 8 documents and 200 chats, which stay whichever rack is lost.
    """
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if '"decision": "capacity"' in block]
    result = decided(json.loads(block))
    assert [goal.verified_exact for goal in (result.objective, *result.then)] == ["1376/5", "400"]
    assert taken(result) == {"documents": 16, "chat": 384}
    for outcome in account(result).after:
        assert outcome.min_sessions == [8, 200]
        assert all(n >= least for n, least in zip(outcome.sessions, [8, 200], strict=True))
