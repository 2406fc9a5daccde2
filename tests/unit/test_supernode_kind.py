"""Supernodes as a decision: sentences, comparisons, documents, proofs, hand-written plans."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from instances.io import example_text, load_instance, parse_instance
from optimizer import SolveOptions
from optimizer.reports.supernode_tables import supernode_tables
from optimizer.side import supernode_kind
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import verify_side
from optimizer.side.result import SideResultDocument
from optimizer.side.supernode_accounts import SupernodeAccountDocument, SupernodeOptionDocument
from optimizer.side.supernode_kind import SupernodeKind
from optimizer.supernode import comparison
from optimizer.supernode.comparison import compare
from optimizer.supernode.problem import SupernodePlan
from tiny_supernodes import option, plan, problem

F = Fraction
Document = dict[str, Any]
SIZES, SERVERS = "v41-supernode-size", "v41-64-cards-eight-servers"


def changed(name: str = SIZES, **section: Any) -> Document:
    document: Document = json.loads(example_text(name))
    document["supernode"] |= section
    return document


def solved(document: Document, solver: str = "auto") -> SideResultDocument:
    return solved_text(json.dumps(document), solver)


@cache
def solved_text(text: str, solver: str) -> SideResultDocument:
    return solve_side(parse_instance(json.loads(text)), SolveOptions(solver=solver, threads=1))


def account_of(result: SideResultDocument) -> SupernodeAccountDocument:
    assert result.evaluation is not None
    assert result.evaluation.supernode is not None
    return result.evaluation.supernode


def at(
    account: SupernodeAccountDocument, size: int, tables: str = "hbm"
) -> SupernodeOptionDocument:
    (found,) = (o for o in account.options if (o.size, o.tables) == (size, tables))
    return found


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_every_solver_proves_the_size(solver: str) -> None:
    result = solved(changed(), solver)
    assert (result.termination, result.limit) == ("optimal", None)
    assert result.certificate.second_opinion.method == "exhaustive"
    assert result.plan is not None
    assert result.plan.supernode is not None
    assert result.plan.supernode.model_dump() == {
        "size": 64,
        "tables": "hbm",
        "attention_tp": 1,
        "sessions": 335,
    }


def test_the_account_says_why_every_other_size_loses() -> None:
    """With 335 sessions eight cards would reach 15,825: 79 % of the gap of 16,789 is capacity.

    128 and 256 cards hold more sessions, and would be slower still with 335.
    """
    account = account_of(solved(changed()))
    eight, won = at(account, 8), at(account, 64)
    assert (won.is_chosen, won.decided_by, won.behind, won.times) == (True, None, 0, 1)
    assert (eight.max_sessions, eight.sessions, eight.decided_by) == (37, 37, "capacity")
    assert eight.behind == pytest.approx(16_788.6, abs=0.1)
    assert eight.same_sessions_value == pytest.approx(15_825, abs=1)
    assert eight.why == (
        "16,789 less (7.4 times): capacity, 37 sessions a card fit; 15,825 with as many as the plan"
    )
    for size in (128, 256):
        assert at(account, size).decided_by == "speed"
        assert at(account, size).max_sessions > 335
    host = at(account, 64, "host")
    assert (host.is_asked, host.decided_by) == (False, "none")
    assert host.why == "better, but not asked for"
    assert at(account, 8, "host").is_asked is False
    assert account.notes[0] == (
        "8 cards: tables on the host free 37 -> 178 sessions, 2,632 -> 10,185 tokens/s per card"
    )
    assert (account.reads_per_step, account.num_instances) == (16_080, 4)
    assert F(account.step.step_exact) == F(won.step.step_exact)
    assert account.used_bytes == 17_217_036_720 + 2 * 2**30 + 335 * 180_703_360


def test_tables_on_the_host_may_be_chosen() -> None:
    """353 sessions bring 4 tokens/s more, since what each exchange takes to start is shared."""
    result = solved(changed(tables=["hbm", "host"]))
    assert result.plan is not None
    assert result.plan.sentence.startswith(
        "64 cards x 4 instances, tables on the host, 353 sessions a card: 19,424 tokens/s per card"
    )
    assert at(account_of(result), 8, "host").decided_by == "capacity"


def test_two_servers_together_beat_eight() -> None:
    """Over eight servers 29.2 ms of exchanges are too much; one server has no room."""
    result = solve_side(load_instance(SERVERS), SolveOptions(threads=1))
    assert result.plan is not None
    assert result.plan.sentence == (
        "16 cards x 4 instances, tables in HBM, 207 sessions a card: 9,717 tokens/s per card, a "
        "step of 21.30 ms. 8 cards (2,632): capacity, not speed, decides; 37 sessions a card fit, "
        "with the tables on the host 178; 32 cards (8,648): speed; 64 cards (7,828): speed"
    )


def test_a_single_user_and_a_split_of_attention() -> None:
    result = solved(changed(goal="user_rate", attention_tp=[1, 8], sizes=[8, 64]))
    assert result.plan is not None
    assert result.plan.sentence == (
        "8 cards x 32 instances, attention over 8, tables in HBM, 1 session for each 8 cards: "
        "869.6 tokens/s of a single user, a step of 1.150 ms. 64 cards (690.6): speed"
    )
    account = account_of(result)
    assert account.user_tokens_per_s == pytest.approx(869.55, abs=0.01)
    assert account.sessions_per_card == 1 / 8


def test_a_target_that_limits_the_larger() -> None:
    """In 14 ms 64 and 128 cards serve 271 sessions, though 335 and 356 fit."""
    account = account_of(solved(changed(step_target_s="14ms")))
    assert at(account, 64).is_chosen
    assert [at(account, size).sessions for size in (8, 64, 128, 256)] == [35, 271, 271, 270]
    assert at(account, 128).decided_by == "speed"
    assert at(account, 8).decided_by == "target"
    most = account_of(solved(changed(step_target_s="14ms", goal="sessions_per_card")))
    assert [at(most, size).decided_by for size in (8, 64, 128, 256)] == [
        *("target", None, "none", "target"),
    ]


def test_the_cost_of_a_session_on_time() -> None:
    """4096 sessions of 100 tokens are 16 a card: 256 cards until the last of them ends."""
    document = changed(goal="cost_per_on_time_session", sizes=[8, 64])
    document["workload"]["cohorts"][0] |= {"num_sessions": 4096, "new_tokens": 100}
    document["workload"]["cohorts"][0]["deadline_s"] = "1s"
    result = solved(document)
    account = account_of(result)
    assert result.termination == "optimal"
    assert (account.on_time, result.objective.unit) == (4096, "card*s")
    assert account.end_exact is not None
    assert result.objective.verified_exact == str(256 * F(account.end_exact) / 4096)
    assert F(account.end_exact) == 100 * F(account.step.step_exact)
    document["workload"]["cohorts"][0]["deadline_s"] = "100ms"
    result = solved(document)
    assert result.termination == "infeasible"
    assert result.reason == "no size of supernode keeps within memory, targets and deadlines"


def test_what_cannot_be_is_told_with_its_amount() -> None:
    document = changed(sizes=[1, 2], host=None)
    result = solved(document)
    assert result.termination == "infeasible"
    assert result.reason.startswith(
        "no size of supernode keeps within memory, targets and deadlines: 1 card: "
    )
    assert result.certificate.second_opinion.agrees is True


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({"size": 64, "tables": "hbm", "sessions": 335}, []),
        ({"size": 64, "tables": "hbm", "attention_tp": 1, "sessions": 336}, ["memory"]),
        ({"size": 64, "tables": "host", "sessions": 335}, ["not_asked"]),
        ({"size": 64, "tables": "host", "sessions": 354}, ["not_asked", "memory"]),
        ({"size": 32, "tables": "hbm", "sessions": 1}, ["option"]),
        ({"size": 64, "tables": "hbm", "sessions": 0}, ["sessions"]),
        ({"size": 64, "tables": "hbm", "sessions": 10**12}, ["memory", "step_target"]),
    ],
)
def test_a_hand_written_plan_is_judged(given: Document, rules: list[str]) -> None:
    judged = verify_side(parse_instance(changed()), {"supernode": given})
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == rules
    assert judged["holds"] is (not rules)
    assert all(v["amount"] > 0 for v in judged["evaluation"]["violations"])


def test_a_result_is_verified_from_its_file() -> None:
    document = changed()
    stored = json.loads(solved(document).to_json())
    judged = verify_side(parse_instance(document), stored)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    stored["objective"]["verified_exact"] = "19420"
    judged = verify_side(parse_instance(document), stored)
    assert any("tokens_per_s_per_card is " in line for line in judged["mismatches"])
    stored["plan"]["supernode"]["sessions"] = 334
    judged = verify_side(parse_instance(document), stored)
    assert any("plan_sha256 differs" in line for line in judged["mismatches"])


def test_nothing_is_known_until_all_plans_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is cut short proves nothing; the oracle is asked anew if it is small enough."""
    kind = SupernodeKind(load_instance(SIZES))
    assert kind.improved(lambda: True) is None
    assert kind.bound() is None
    best = kind.improved(lambda: False)
    assert best is not None
    assert kind.bound() == kind.value(best)
    assert kind.opinion(kind.value(best) + 1).agrees is False  # type: ignore[union-attr]
    fresh = SupernodeKind(load_instance(SIZES))
    assert fresh.opinion(kind.value(best)).agrees is True  # type: ignore[union-attr]
    monkeypatch.setattr(supernode_kind, "MAX_ORACLE_STEPS", 10)
    assert fresh.opinion(kind.value(best)) is None


def test_what_is_too_large_for_solvers_is_proven_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("formulations.supernode_data.MAX_PICKS", 100)
    result = solve_side(load_instance(SIZES), SolveOptions(threads=1))
    assert (result.termination, result.limit) == ("optimal", None)
    assert result.objective.bound_exact == result.objective.verified_exact


def test_comparisons_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs hold three sessions at 3/2.6 a card. Single cards that hold one reach 1/2.2, and would
    reach 3/2.6 with three: capacity. Cards that read 12 B more hold three as well: speed.
    """
    small = option(size=1, replicated_bytes=20)
    slow = option(size=4, read_bytes=32)
    uneven = option(size=4, tables="host", alignment_cards=1)
    pair = option(size=2, attention_tp=2, session_bytes=8)
    p = problem(small, option(), slow, uneven, pair, option(size=2, tables="host"))
    found = {rival.option.key: rival for rival in compare(p, plan(3))}
    assert [rival.decided_by for rival in found.values()] == [
        *("capacity", None, "speed", "alignment", "capacity", "none"),
    ]
    assert found[1, "hbm", 1].same_sessions == F(3) / F("2.6")
    assert found[1, "hbm", 1].max_sessions == 1
    assert found[2, "hbm", 2].same_sessions == 6 / (2 * F("3.6"))  # six FLOP-bound of two cards
    assert compare(p, SupernodePlan(3, "hbm", 1, 1)) == ()
    monkeypatch.setattr(comparison, "MAX_STEPS", 5)
    assert compare(p, plan(3)) == ()


def test_a_table_for_reports() -> None:
    (table,) = supernode_tables(account_of(solved(changed())))
    assert [column.name for column in table.columns][:4] == [
        "cards",
        "tables",
        "weights",
        "sessions",
    ]
    first = [cell.text for cell in table.rows[0]]
    assert first[:4] == ["8", "HBM", "71.01 GB", "37"]
    assert table.note.startswith("8 cards: tables on the host free 37 -> 178 sessions")
