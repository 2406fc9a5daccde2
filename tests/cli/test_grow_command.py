"""`supernode grow` from the command line."""

from __future__ import annotations

import json

import pytest

from cli.main import run


def test_the_table_names_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["grow", "building-120kw", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "one more server of hgx" in out
    assert "+10,200" in out


def test_the_document_holds_exact_gains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["grow", "building-120kw", "--json", "--power", "20.4kW", "--threads", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    power = document["additions"][-1]
    assert power["name"] == "20.4 kW more power"
    # floor(140.4 / 10.2) = 13 servers, two more
    assert power["gains"]["servers"] == "2"


def test_other_decisions_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["grow", "four-sessions-128k"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "decision" in captured.err
