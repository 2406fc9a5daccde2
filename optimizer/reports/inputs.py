"""What a report is made from: results, rows of sweeps and studies, recognised by their content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from instances.errors import InputError
from instances.io import parse_json, read_text, validate
from optimizer.conflicts.document import ConflictDocument
from optimizer.frontiers.pareto import ParetoDocument
from optimizer.reports.row_files import ROW_SUFFIXES, read_rows, row_from
from optimizer.result import AlternativesDocument, Document, ResultDocument
from optimizer.sensitivities.document import SensitivityDocument
from optimizer.side.result import SideResultDocument
from optimizer.sweeps.rows import SweepPoint

DocumentT = TypeVar("DocumentT", bound=BaseModel)

#: Studies by their "kind".
STUDIES: dict[str, type[Document]] = {
    "sensitivity": SensitivityDocument,
    "alternatives": AlternativesDocument,
    "conflict": ConflictDocument,
}

_WHAT = "a result, rows of a sweep, or a sensitivity, Pareto, alternatives or conflict document"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[DocumentT]):
    """A document and the name of the file it came from, without its folder."""

    source: str
    document: DocumentT


@dataclass(slots=True)
class ReportInputs:
    """All that a report shows, in the order of the files."""

    sources: list[str] = field(default_factory=list)
    results: list[Loaded[ResultDocument]] = field(default_factory=list)
    side_results: list[Loaded[SideResultDocument]] = field(default_factory=list)
    rows: list[Loaded[SweepPoint]] = field(default_factory=list)
    sensitivities: list[Loaded[SensitivityDocument]] = field(default_factory=list)
    alternatives: list[Loaded[AlternativesDocument]] = field(default_factory=list)
    conflicts: list[Loaded[ConflictDocument]] = field(default_factory=list)

    def add(self, source: str, document: BaseModel) -> None:
        """File a document under its kind."""
        places: dict[type[BaseModel], list[Any]] = {
            ResultDocument: self.results,
            SideResultDocument: self.side_results,
            SensitivityDocument: self.sensitivities,
            AlternativesDocument: self.alternatives,
            ConflictDocument: self.conflicts,
        }
        if isinstance(document, ParetoDocument):
            self.rows += [Loaded(source, row) for row in document.rows()]
        else:
            places.get(type(document), self.rows).append(Loaded(source, document))


def read_report_inputs(paths: Iterable[str | Path]) -> ReportInputs:
    """Read files of a report; a file given twice counts once.

    Raises InputError for a file that cannot be read, is none of the known kinds, or holds nothing.
    """
    inputs = ReportInputs()
    for path in dict.fromkeys(str(path) for path in paths):
        name = "stdin" if path == "-" else Path(path).name
        for document in _documents(path):
            inputs.add(name, document)
        inputs.sources.append(name)
    if not inputs.sources:
        raise InputError("report", "", f"no input; give files that hold {_WHAT}")
    return inputs


def _documents(path: str) -> list[Any]:
    """Return the documents in a file: one, or one for each row."""
    if Path(path).suffix.lower() in ROW_SUFFIXES:
        return [*read_rows(path)]
    text, source = read_text(path)
    data = parse_json(text, source)
    if isinstance(data, list):
        if not data:
            raise InputError(source, "", "holds no rows; run the sweep first")
        return [row_from(row, f"{source}: row {n}") for n, row in enumerate(data, start=1)]
    return [_document(data, source)]


def _document(data: Any, source: str) -> Any:
    """Return the document that parsed JSON holds; its fields tell which."""
    if not isinstance(data, dict):
        raise InputError(source, "", f"is {_kind_of_json(data)}, not {_WHAT}")
    kind = data.get("kind")
    if kind == "pareto":
        return validate(ParetoDocument, data, source)
    if isinstance(kind, str) and kind in STUDIES:
        return validate(STUDIES[kind], data, source)
    if "certificate" in data:
        return validate(SideResultDocument if "decision" in data else ResultDocument, data, source)
    if isinstance(data.get("objective"), str) and "termination" in data:
        return row_from(data, source)
    if "fleet" in data and "model" in data:
        rule = "is a problem instance, not a result; run `supernode solve` on it with -o RESULT"
        raise InputError(source, "", f"{rule} and give that")
    if "groups" in data:
        rule = "is a plan alone; give the result document, which holds the plan and its account"
        raise InputError(source, "", rule)
    raise InputError(source, "", f"is not {_WHAT}; give a file that `supernode` wrote")


def _kind_of_json(data: object) -> str:
    kinds: dict[type, str] = {str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(data), "a number")
