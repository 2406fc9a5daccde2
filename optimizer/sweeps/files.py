"""Files of rows that grow block by block, stay valid when cut off, and can be continued."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from instances.errors import InputError
from optimizer.errors import BackendUnavailable

Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".csv", ".parquet")


class RowFile(Protocol):
    """A file of rows, open for more."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows there are; those read from CSV hold text."""
        ...

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows and hand them to the operating system."""
        ...

    def close(self, *, is_complete: bool) -> None:
        """Leave a valid file, finished or not."""
        ...


def open_rows(path: str | Path, sweep: str, *, resume: bool) -> RowFile:
    """Open a file of rows by its suffix; with `resume` its whole rows of this sweep are kept.

    What a cut-off write left of a row is removed. Raises InputError for another suffix, a file that
    cannot be written, or rows of another sweep.
    """
    target = Path(path)
    kinds = {".jsonl": _JsonLines, ".csv": _Csv}
    try:
        if target.suffix == ".parquet":
            return _Parquet(target, sweep, resume)
        if target.suffix not in kinds:
            rule = f"ends in none of {', '.join(SUFFIXES)}; the suffix says how rows are written"
            raise InputError(str(path), "", rule)
        return kinds[target.suffix](target, sweep, resume)
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise InputError(str(path), "", f"{reason}; nothing was written") from None


class _Lines:
    """Rows as lines of text, appended in place."""

    def __init__(self, path: Path, sweep: str, resume: bool) -> None:
        self.path, self.sweep = path, sweep
        self._rows: list[dict[str, Any]] = []
        kept = 0
        if resume and path.exists():
            kept = self._keep(path.read_bytes())
        is_special = path.exists() and not path.is_file()  # a pipe or a terminal: only written to
        mode = "wb" if is_special else "r+b" if path.exists() else "xb"
        self._file = open(path, mode, buffering=0)  # noqa: SIM115 - closed later
        if not is_special:
            self._file.truncate(kept)
            self._file.seek(kept)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows there are."""
        return self._rows

    def _keep(self, content: bytes) -> int:
        """Read whole rows of this sweep; returns how many bytes they take."""
        end = content.rfind(b"\n") + 1
        for row in self.parse(content[:end].decode("utf-8")):
            if row.get("sweep") != self.sweep:
                rule = "holds rows of another sweep (or other options); resume with the same or "
                raise InputError(str(self.path), "", rule + "write to another file")
            self._rows.append(row)
        return end

    def parse(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of whole lines."""
        raise NotImplementedError

    def text(self, rows: Sequence[Row]) -> str:
        """Return rows as whole lines."""
        raise NotImplementedError

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows and hand them to the operating system."""
        left = self.text(rows).encode("utf-8")
        try:
            while left:  # unbuffered: what is written is the system's, also if we are killed
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            reason = (error.strerror or "cannot be written").lower()
            rule = f"{reason}; {len(self.rows)} rows are kept, --resume goes on"
            raise InputError(str(self.path), "", rule) from None
        self._rows += [dict(row) for row in rows]

    def close(self, *, is_complete: bool) -> None:
        """Close the file; it is valid after every call of `add`."""
        self._file.close()


class _JsonLines(_Lines):
    """One JSON object a line."""

    def parse(self, text: str) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InputError(str(self.path), f"line {number}", "is no row of a sweep")
            yield row

    def text(self, rows: Sequence[Row]) -> str:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class _Csv(_Lines):
    """Comma-separated values with a header; null is empty."""

    _header: list[str] | None = None

    def parse(self, text: str) -> Iterator[dict[str, Any]]:
        reader = csv.DictReader(io.StringIO(text))
        self._header = list(reader.fieldnames or []) or None
        if self._header is not None and "sweep" not in self._header:
            raise InputError(str(self.path), "line 1", "is no header of a sweep")
        for row in reader:
            yield {name: value if value != "" else None for name, value in row.items()}

    def text(self, rows: Sequence[Row]) -> str:
        out = io.StringIO()
        for row in rows:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            if self._header is None:
                self._header = list(row)
                writer.writeheader()
            writer.writerow(row)
        return out.getvalue()


class _Parquet:
    """A Parquet file; rows wait in a journal of JSON lines beside it, as Parquet cannot grow."""

    def __init__(self, path: Path, sweep: str, resume: bool) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            reason = "pyarrow is not installed; install supernode-planner[parquet], or write .jsonl"
            raise BackendUnavailable(reason) from None
        self.path, self.journal = path, path.with_name(f"{path.name}.partial.jsonl")
        is_new = not self.journal.exists()
        finished: list[dict[str, Any]] = []
        if resume and is_new and path.exists():
            finished = parquet.read_table(path).to_pylist()
        self._lines = _JsonLines(self.journal, sweep, resume)
        if finished and finished[0].get("sweep") == sweep:
            self._lines.add(finished)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows there are."""
        return self._lines.rows

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows to the journal."""
        self._lines.add(rows)

    def close(self, *, is_complete: bool) -> None:
        """Write the Parquet file of all rows there are; the journal stays until all are there."""
        import pyarrow
        import pyarrow.parquet as parquet

        self._lines.close(is_complete=is_complete)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        parquet.write_table(pyarrow.Table.from_pylist(self.rows), temporary)
        os.replace(temporary, self.path)
        if is_complete:
            self.journal.unlink()
