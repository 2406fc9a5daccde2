"""Commands run in this process, and what every decision does when it is solved and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.main import run
from instances.io import example_text

Capture = pytest.CaptureFixture[str]


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    code = run(list(arguments))
    return code, *capsys.readouterr()


def check_solved_and_verified(name: str, capsys: Capture, tmp_path: Path) -> dict[str, Any]:
    """Solve an example, verify what was written, and compare all with the schemas.

    Returns the document of the result.
    """
    schema = json.loads(call(capsys, "schema", "side-result")[1])
    target = tmp_path / "result.json"
    code, out, err = call(capsys, "solve", name, "--json", "-o", str(target), "--threads", "1")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    jsonschema.Draft202012Validator(schema).validate(document)
    code, out, err = call(capsys, "verify", name, str(target), "--json")
    assert (code, err) == (0, "")
    judged = json.loads(out)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["evaluation"] == document["evaluation"]
    validator = jsonschema.Draft202012Validator(json.loads(call(capsys, "schema")[1]))
    validator.validate(json.loads(example_text(name)))
    return document
