"""Files of rows: whole lines only, continued where they end, never mixed with another sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instances.errors import InputError
from optimizer.sweeps.files import SUFFIXES, open_rows

ROWS: list[dict[str, Any]] = [
    {
        "instance": "a",
        "x": n,
        "plan": None if n % 2 else 'TP "2", ring',
        "value": n / 8,
        "sweep": "s",
    }
    for n in range(5)
]


def write(
    path: Path, rows: list[dict[str, Any]], *, resume: bool = False, whole: bool = True
) -> int:
    """Open, append, close; returns how many rows were there before."""
    file = open_rows(path, "s", resume=resume)
    before = len(file.rows)
    file.add(rows[:2])
    file.add(rows[2:])
    file.close(is_complete=whole)
    return before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_continued_file_is_the_file_written_at_once(tmp_path: Path, suffix: str) -> None:
    at_once, in_parts = tmp_path / f"once{suffix}", tmp_path / f"parts{suffix}"
    write(at_once, ROWS)
    write(in_parts, ROWS[:3], whole=False)
    assert write(in_parts, ROWS[3:], resume=True) == 3
    assert in_parts.read_bytes() == at_once.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [at_once.name, in_parts.name]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_torn_row_is_removed_wherever_it_is_torn(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    write(whole, ROWS)
    content = whole.read_bytes()
    ends = [n + 1 for n, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content)):
        torn = tmp_path / f"torn{suffix}"
        torn.write_bytes(content[:cut])
        file = open_rows(torn, "s", resume=True)
        lines = sum(end <= cut for end in ends)
        assert len(file.rows) == max(0, lines - (suffix == ".csv"))
        file.add(ROWS[len(file.rows) :])
        file.close(is_complete=True)
        assert torn.read_bytes() == content


def test_without_resume_a_file_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write(path, ROWS)
    assert write(path, ROWS[:1]) == 0
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_of_another_sweep_are_not_continued(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    write(path, ROWS, whole=suffix != ".parquet")
    with pytest.raises(InputError, match="rows of another sweep"):
        open_rows(path, "other", resume=True)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.txt", "", "ends in none of .jsonl, .csv, .parquet"),
        ("rows", "", "ends in none of"),
        ("rows.jsonl", "[1]\n", "line 1: is no row of a sweep"),
        ("rows.jsonl", "{}\n", "rows of another sweep"),
        ("rows.jsonl", "not json\n", "line 1: is no row"),
        ("rows.csv", "a,b\n1,2\n", "is no header of a sweep"),
    ],
)
def test_what_is_no_file_of_rows_is_refused(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        open_rows(path, "s", resume=True)
    assert path.read_text() == content


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory; nothing was written"):
        open_rows(tmp_path / "none" / "rows.csv", "s", resume=False)


def test_a_finished_parquet_file_is_known_as_finished(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    write(path, ROWS)
    assert parquet.read_table(path).to_pylist() == ROWS
    file = open_rows(path, "s", resume=True)
    assert len(file.rows) == len(ROWS)
    file.close(is_complete=True)
    assert parquet.read_table(path).to_pylist() == ROWS


def test_an_interrupted_parquet_file_is_valid_and_keeps_its_journal(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    write(path, ROWS[:3], whole=False)
    assert parquet.read_table(path).to_pylist() == ROWS[:3]
    journal = tmp_path / "rows.parquet.partial.jsonl"
    assert [json.loads(line)["x"] for line in journal.read_text().splitlines()] == [0, 1, 2]
