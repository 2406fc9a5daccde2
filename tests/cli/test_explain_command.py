"""`supernode explain`: every byte on every card of a plan, solved, stored or written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call
from instances.io import example_text

Document = dict[str, Any]


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds the words."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def save(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def accounts(capsys: Capture, *arguments: str) -> Document:
    code, out, err = call(capsys, "explain", *arguments, "--json")
    assert (code, err) == (0, "")
    document: Document = json.loads(out)
    return document


def group(tp: int, cards: list[int], sessions: list[str], **changes: Any) -> Document:
    return {
        "count": 1,
        "pool": "hgx",
        "parallel": {"tp": tp},
        "collective": "ring" if tp > 1 else "none",
        "cards_per_instance": tp,
        "placement": [[{"server": 0, "cards": cards}]],
        "sessions": [sessions],
        **changes,
    }


#: Three sessions on two cards: 84.5 GB and more, so that they do not fit.
OVERFULL = {"groups": [group(2, [3, 5], ["urgent/0", "batch/0", "batch/1"])]}


def test_an_account_adds_up_to_the_bytes_that_the_source_states(capsys: Capture) -> None:
    """Qwen3-32B on TP2: 32,767 MB of 65,524,246,528 B, and 1,184,512 B of norms on both cards."""
    document = accounts(capsys, "four-sessions-128k")
    assert len(document["cards"]) == 8
    for card in document["cards"]:
        listed = (*card["weights"], *card["caches"], *card["buffers"])
        assert card["total_bytes"] == sum(part["bytes"] for part in listed)
        assert card["weights_bytes"] == sum(part["bytes"] for part in card["weights"])
        assert card["total_bytes"] <= card["capacity_bytes"] == 80 * 10**9
        assert card["layers"] == [0, 63]
        assert all(part["reason"] for part in listed)
        # 64 layers · 2 · 4 heads · 128 numbers · 2 B · 131,072 tokens
        assert [part["bytes"] for part in card["caches"]] == [64 * 2 * 4 * 128 * 2 * 131072]
        assert [part["bytes"] for part in card["buffers"]] == [2 * 2**30]
    assert [card["owns"]["KV heads"] for card in document["cards"]] == ["0-3", "4-7"] * 4
    assert [card["instance"] for card in document["cards"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    for account in document["instances"]:
        # norms: 64 · (2 · 5120 + 2 · 128) + 5120 = 676,864 numbers of 2 B
        assert account["one_copy_bytes"] == 65_524_246_528
        assert [(d["component"], d["bytes"]) for d in account["duplicated"]] == [("norms", 1353728)]
        assert account["held_bytes"] == 65_524_246_528 + 1_353_728
        assert account["adds_up"] is True


def test_the_report_names_cards_components_and_duplication(capsys: Capture) -> None:
    code, out, err = call(capsys, "explain", "mixed-wins")
    assert (code, err) == (0, "")
    assert out.startswith("mixed-wins: every byte on every card\n")
    assert "heads split over 4 cards" in out
    assert "declared by runtime.workspace_bytes" in out
    assert "65,524,246,528 B (one copy)" in out
    assert "norms: 1,353,728 B, whole on 2 cards" in out
    for number in range(3):
        assert f"Serving instance {number}: " in out
    for number in range(8):
        assert f"  hgx/0/{number} owns vocabulary rows " in out


def test_one_card_alone(capsys: Capture) -> None:
    whole = accounts(capsys, "one-session-50ms")
    one = accounts(capsys, "one-session-50ms", "--card", "5")
    assert one["cards"] == [whole["cards"][5]]
    assert one["instances"] == whole["instances"]
    assert one["cards"][0]["coordinates"]["tp"] == 5
    out = call(capsys, "explain", "one-session-50ms", "--card", "5")[1]
    assert "hgx/0/5 owns" in out
    assert "hgx/0/4 owns" not in out


def test_the_plan_of_a_result_and_a_plan_written_by_hand(capsys: Capture, tmp_path: Path) -> None:
    target = str(tmp_path / "result.json")
    assert call(capsys, "solve", "mixed-wins", "-o", target)[0] == 0
    document = accounts(capsys, "mixed-wins", "--plan", target)
    judged = json.loads(call(capsys, "verify", "mixed-wins", target, "--json")[1])
    for card, use in zip(document["cards"], judged["evaluation"]["cards"], strict=True):
        assert (card["server"], card["card"]) == (use["server"], use["card"])
        assert card["weights_bytes"] == use["weights_bytes"]
        assert sum(part["bytes"] for part in card["caches"]) == use["kv_bytes"]
        assert card["total_bytes"] == use["total_bytes"]
    path = save(tmp_path / "plan.json", {"groups": [group(4, [6, 1, 4, 2], ["batch/1"])]})
    document = accounts(capsys, "mixed-wins", "--plan", path)  # sessions may be missing
    assert [card["card"] for card in document["cards"]] == [6, 1, 4, 2]
    assert [card["coordinates"]["tp"] for card in document["cards"]] == [0, 1, 2, 3]
    assert [card["owns"]["KV heads"] for card in document["cards"]] == ["0-1", "2-3", "4-5", "6-7"]


def test_a_plan_that_does_not_fit_is_explained_too(capsys: Capture, tmp_path: Path) -> None:
    """That is when one needs it: 32.76 GB of weights, 3 · 17.18 GB of KV, 2.15 GB of workspace."""
    document = accounts(capsys, "mixed-wins", "--plan", save(tmp_path / "plan.json", OVERFULL))
    for card in document["cards"]:
        assert card["total_bytes"] > card["capacity_bytes"]
        assert sum(part["bytes"] for part in card["caches"]) == 3 * 64 * 2 * 4 * 128 * 2 * 131072


def test_experts_groups_and_stages_have_coordinates(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("deepseek-r1-32xh100"))
    parallel = {"dp": 8, "pp": 4, "ep": 8}
    placement = [[{"server": server, "cards": list(range(8))} for server in range(4)]]
    plan = {
        "count": 1,
        "pool": "hgx",
        "parallel": parallel,
        "stages": [16, 15, 15, 15],
        "collective": "none",
        "cards_per_instance": 32,
        "placement": placement,
        "sessions": [["chat/0"]],
    }
    problem = save(tmp_path / "problem.json", document)
    path = save(tmp_path / "plan.json", {"groups": [plan]})
    found = accounts(capsys, problem, "--plan", path)["cards"]
    assert [card["layers"] for card in found[::8]] == [[0, 15], [16, 30], [31, 45], [46, 60]]
    assert [card["coordinates"]["stage"] for card in found[::8]] == [0, 1, 2, 3]
    assert [card["owns"]["experts"] for card in found[8:16]] == [
        f"{32 * i}-{32 * i + 31}" for i in range(8)
    ]
    assert [card["coordinates"]["expert_group"] for card in found[:8]] == list(range(8))
    assert [bool(card["caches"]) for card in found[:8]] == [True] + [False] * 7


BROKEN = {
    "num_cards": group(4, [0, 1], ["urgent/0"]),
    "unknown_card": group(2, [0, 8], ["urgent/0"]),
    "card_overlap": group(2, [0, 0], ["urgent/0"]),
    "pool": group(2, [0, 1], ["urgent/0"], pool="moon"),
    "heads": group(3, [0, 1, 2], ["urgent/0"]),
    "collective": group(2, [0, 1], ["urgent/0"], collective="none"),
    "unknown_session": group(2, [0, 1], ["nobody/0"]),
    "session_repeated": group(2, [0, 1], ["urgent/0", "urgent/0"]),
    "lanes": group(2, [0, 1], ["urgent/0"], lanes=[[7]]),
    "pp": group(2, [0, 1, 2, 3], ["urgent/0"], parallel={"tp": 2, "pp": 2}, stages=[32, 32]),
    "stages": group(2, [0, 1], ["urgent/0"], stages=[63]),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_plan_that_breaks_a_rule_is_refused(rule: str, capsys: Capture, tmp_path: Path) -> None:
    path = save(tmp_path / "plan.json", {"groups": [BROKEN[rule]]})
    refused(call(capsys, "explain", "mixed-wins", "--plan", path), "plan.json: ", f"[{rule}]")


@pytest.mark.parametrize("text", ["", "[]", "5", "{", '{"groups": 1}', '{"plan": null}'])
def test_what_is_no_plan_is_refused(text: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    refused(call(capsys, "explain", "mixed-wins", "--plan", str(path)), "plan.json: ")


def test_what_has_no_cards_to_explain_is_refused(capsys: Capture, tmp_path: Path) -> None:
    refused(call(capsys, "explain", "mixed-wins", "--card", "8"), "--card = 8", "0..7")
    refused(call(capsys, "explain", "mixed-wins", "--card", "-1"), "--card")
    refused(call(capsys, "explain", "mixed-wins", "--time-limit", "nan"), "--time-limit")
    refused(call(capsys, "explain", "mixed-wins", "--time-limit", "-1"), "--time-limit")
    refused(call(capsys, "explain", "mixed-wins", "--plan", str(tmp_path / "no.json")), "no.json")
    refused(call(capsys, "explain", "no-such-example"), "no-such-example")
    for name in ("r1-bf16-64xa800-stages", "qwen3-235b-experts-skewed"):
        refused(call(capsys, "explain", name), "decision: ", "not a deployment")
        path = save(tmp_path / "plan.json", OVERFULL)
        refused(call(capsys, "explain", name, "--plan", path), "decision: ")


def test_names_are_printed_as_they_are_written(capsys: Capture, tmp_path: Path) -> None:
    document = json.loads(example_text("mixed-wins"))
    document["name"] = document["fleet"]["pools"][0]["name"] = "[red]x[/]"
    code, out, err = call(capsys, "explain", save(tmp_path / "named.json", document))
    assert (code, err) == (0, "")
    assert out.startswith("[red]x[/]: every byte on every card\n")
    assert "  [red]x[/]/0/0 owns " in out
