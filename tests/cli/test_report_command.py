"""`supernode report`: what it writes, and what it refuses in one line with nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.main import run
from instances.io import example_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def result(tmp_path: Path) -> str:
    path = tmp_path / "healthy.json"
    path.write_text(example_text("four-sessions-128k", ".best.json"), encoding="utf-8")
    return str(path)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refused(capsys: Capture, folder: Path, *arguments: str) -> str:
    """The one line of a refusal; it leaves nothing behind."""
    before = files(folder)
    assert run(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert files(folder) == before
    return err


def test_the_suffix_says_what_is_written(capsys: Capture, tmp_path: Path, result: str) -> None:
    starts = {
        "page.html": b"<!DOCTYPE html>",
        "report.md": b"# four-sessions-128k",
        "chart.svg": b"<?xml",
        "chart.png": b"\x89PNG",
    }
    for name, start in starts.items():
        path = tmp_path / name
        assert run(["report", result, "-o", str(path)]) == 0
        content = path.read_bytes()
        assert content.startswith(start)
        said = f"wrote {path}: {len(content):,} bytes from healthy.json\n"
        assert capsys.readouterr() == (said, "")
        assert run(["report", result, "-o", str(path)]) == 0
        assert path.read_bytes() == content
        capsys.readouterr()
    assert files(tmp_path) == {"healthy.json", *starts}
    ElementTree.parse(tmp_path / "chart.svg")


def test_a_chart_is_chosen_by_name(tmp_path: Path, result: str) -> None:
    for name in ("memory", "timeline"):
        path = str(tmp_path / f"{name}.svg")
        assert run(["report", result, "-o", path, "--chart", name]) == 0
    memory = (tmp_path / "memory.svg").read_text(encoding="utf-8")
    assert "27.91 GB free" in memory
    assert "27.91 GB free" not in (tmp_path / "timeline.svg").read_text(encoding="utf-8")


def test_a_sweep_that_the_command_wrote_is_read(tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.csv")
    arguments = ["four-sessions-128k", "--set", "search.tp=2,8", "--exact", "-o", rows]
    assert run(["sweep", *arguments]) == 0
    assert run(["report", rows, "-o", str(tmp_path / "r.md")]) == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8").replace("\\", "")
    assert "| tp = 2 | four-sessions-128k | 119.1 ms | no limit | 0.2382 card·s | 4 of 4 |" in text
    assert "| tp = 8 | four-sessions-128k | 123.5 ms | 164.7 ms | 0.4392 card·s | 3 of 4 |" in text
    assert "every plan needs a deadline of at least 119.1 ms" in text


def test_bad_input_writes_nothing(capsys: Capture, tmp_path: Path, result: str) -> None:
    page = str(tmp_path / "page.html")
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    assert "bad.json: not JSON" in refused(capsys, tmp_path, result, str(bad), "-o", page)
    assert "none.json: no such file" in refused(
        capsys, tmp_path, str(tmp_path / "none.json"), "-o", page
    )
    bad.write_text(json.dumps({"a": 1}), encoding="utf-8")
    assert "bad.json: is not a result" in refused(capsys, tmp_path, str(bad), "-o", page)
    lines = tmp_path / "rows.jsonl"
    lines.write_text("", encoding="utf-8")
    assert "holds no rows" in refused(capsys, tmp_path, str(lines), "-o", page)


def test_bad_options_are_refused(capsys: Capture, tmp_path: Path, result: str) -> None:
    pdf = str(tmp_path / "page.pdf")
    assert "ends in none of .html, .md" in refused(capsys, tmp_path, result, "-o", pdf)
    page = str(tmp_path / "page.html")
    message = refused(capsys, tmp_path, result, "-o", page, "--chart", "memory")
    assert "--chart = 'memory': is for single charts" in message
    chart = str(tmp_path / "chart.png")
    message = refused(capsys, tmp_path, result, "-o", chart, "--chart", "curves")
    assert "the inputs hold nothing for curves; they hold memory, timeline" in message
    assert "curves" in refused(capsys, tmp_path, result, "-o", chart, "--chart", "pie")
    assert "RESULT_OR_SWEEP" in refused(capsys, tmp_path, "-o", page)
    assert "'-o'" in refused(capsys, tmp_path, result)


@pytest.mark.parametrize("name", ["page.html", "report.md", "chart.svg", "chart.png"])
def test_a_folder_that_is_not_there(
    capsys: Capture, tmp_path: Path, result: str, name: str
) -> None:
    message = refused(capsys, tmp_path, result, "-o", str(tmp_path / "none" / name))
    assert "no such file or directory; nothing was written" in message


def test_without_matplotlib_one_line_says_what_to_install(
    capsys: Capture, tmp_path: Path, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(capsys, tmp_path, result, "-o", str(tmp_path / "chart.png"))
    assert "matplotlib is missing; install supernode-planner[report]" in message
    assert run(["report", result, "-o", str(tmp_path / "page.html")]) == 0


def test_a_page_needs_neither_matplotlib_nor_a_solver(tmp_path: Path, result: str) -> None:
    code = (
        "import sys; from cli.main import run; "
        "code = run(['report', sys.argv[1], '-o', sys.argv[2]]); "
        "heavy = {'matplotlib', 'pyarrow', 'pandas', 'highspy', 'ortools', 'rich'}; "
        "loaded = heavy & set(sys.modules); "
        "print(code, sorted(loaded))"
    )
    command = [sys.executable, "-c", code, result, str(tmp_path / "page.html")]
    ended = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=60, env=dict(os.environ)
    )
    assert ended.stdout.splitlines()[-1] == "0 []", ended.stderr
