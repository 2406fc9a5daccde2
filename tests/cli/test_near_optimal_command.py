"""`solve --within`, measured spreads, and the schemas of all documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.schema import DOCUMENTS
from commands import Capture, call
from instances.io import example_text


def near_of(capsys: Capture, *arguments: str) -> dict[str, Any] | None:
    code, out, _ = call(capsys, "solve", *arguments, "--json")
    assert code == 0
    document = json.loads(out)
    schema = json.loads(call(capsys, "schema", "result")[1])
    jsonschema.Draft202012Validator(schema).validate(document)
    near: dict[str, Any] | None = document["near_optimal"]
    return near


def test_within_lists_every_plan_of_the_margin(capsys: Capture) -> None:
    near = near_of(capsys, "four-sessions-128k", "--within", "10%")
    assert near is not None
    assert near["is_complete"]
    shown = [(a["sentence"], round(a["over"], 3)) for a in near["alternatives"]]
    assert shown == [
        ("8 cards = 4 instances × TP2 (ring)", 0.0),
        ("8 cards = 2 instances × TP4 (ring)", 0.071),
    ]
    code, out, _ = call(capsys, "solve", "four-sessions-128k", "--within", "10%")
    assert code == 0
    assert "Plans within 10 % of the best (all there are)" in out
    assert "7.11%" in out


def test_without_a_margin_and_a_spread_nothing_is_listed(capsys: Capture) -> None:
    assert near_of(capsys, "four-sessions-128k") is None


def test_a_measured_spread_lists_what_it_cannot_tell_apart(capsys: Capture, tmp_path: Path) -> None:
    data = json.loads(example_text("four-sessions-128k"))
    data["measurements"] = [
        {"tp": 2, "session_s": "119ms", "spread_s": "2ms"},
        {"tp": 4, "session_s": "62.5ms", "spread_s": "2ms"},
    ]
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(data))
    near = near_of(capsys, str(path))
    assert near is not None
    assert [a["inside_spread"] for a in near["alternatives"]] == [False, True]
    assert "inside the spread of the best" in call(capsys, "solve", str(path))[1]
    data["measurements"][0]["spread_s"] = "119ms"
    path.write_text(json.dumps(data))
    code, out, err = call(capsys, "solve", str(path))
    assert (code, out) == (2, "")
    assert "spread_s must be less than session_s" in err


@pytest.mark.parametrize("within", ["-5%", "much", "5s"])
def test_a_margin_that_is_none_is_one_clear_line(capsys: Capture, within: str) -> None:
    code, out, err = call(capsys, "solve", "four-sessions-128k", "--within", within)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "within" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_document_has_a_schema(capsys: Capture, kind: str) -> None:
    code, out, _ = call(capsys, "schema", kind)
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))
