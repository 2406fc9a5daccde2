"""What happens when solvers are missing, lie, run out of time, are interrupted or run together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import entry_points
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call
from formulations import milp_engine
from formulations.milp_engine import CbcDeployment, HighsDeployment
from instances.instance import Instance
from instances.io import example_names, load_instance, parse_instance
from optimizer import SolveOptions, backends, second_opinion, solve
from optimizer.decode import plan_of
from optimizer.evaluate import evaluate
from optimizer.protocols import (
    Outcome,
    SelectedInstance,
    Selection,
    SolveRequest,
    StageClaim,
    Termination,
)

SOLVERS = ("highs", "cp-sat", "cbc")
SAT, MILP = "CpSolver", "LpProblem"
INTERRUPTED = [("auto", SAT), ("auto", MILP), ("cp-sat", SAT), ("highs", MILP), ("cbc", MILP)]
MAIN = "from cli.main import main; main()"

DEPLOYMENTS = [name for name in example_names() if load_instance(name).decision == "deployment"]


def process(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=60,
    )


def large_document() -> dict[str, Any]:
    """3 cohorts of 6 sessions on 2 pools of 2 servers: minutes of search, not seconds."""
    cohorts = [("chat", 131064, 8, "900ms"), ("code", 32760, 16, "1s"), ("batch", 65528, 12, "2s")]
    fields = ("name", "context_tokens", "new_tokens", "deadline_s")
    pool = {"server": "hgx-h100", "num_servers": 2, "fabric_between": "infiniband-ndr"}
    return {
        "name": "large",
        "model": "qwen3-32b",
        "fleet": {"pools": [{"name": "east", **pool}, {"name": "west", **pool}]},
        "workload": {
            "cohorts": [{"num_sessions": 6, **dict(zip(fields, c, strict=True))} for c in cohorts]
        },
        "objective": {"minimise": ["mean_completion"], "billing": "instance"},
    }


@pytest.fixture
def large_path(tmp_path: Path) -> str:
    path = tmp_path / "large.json"
    path.write_text(json.dumps(large_document()), encoding="utf-8")
    return str(path)


def without_seconds(text: str) -> str:
    """A result document without the one field that may differ between equal runs."""
    shorter, count = re.subn(r'^  "seconds": [0-9.]+$', "", text, flags=re.MULTILINE)
    assert count == 1
    return shorter


def one_error_line(err: str) -> bool:
    return err.startswith("error: ") and len(err.splitlines()) == 1


def test_a_missing_cbc_is_said_in_one_line_and_auto_does_not_need_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milp_engine, "cbc_path", lambda: None)
    code, out, err = call(capsys, "solve", "mixed-wins", "--solver", "cbc")
    assert (code, out) == (2, "")
    assert one_error_line(err)
    assert all(solver in err for solver in ("CBC", "highs", "cp-sat"))
    for name in DEPLOYMENTS:
        code, out, err = call(capsys, "solve", name)
        assert (code in (0, 3), err) == (True, ""), name


def test_a_missing_highs_is_said_in_one_line_and_auto_does_not_need_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HighsDeployment, "unavailable", lambda _: "HiGHS is not installed")
    code, out, err = call(capsys, "solve", "mixed-wins", "--solver", "highs")
    assert (code, out) == (2, "")
    assert one_error_line(err)
    assert "HiGHS is not installed" in err
    for name in DEPLOYMENTS:
        code, out, err = call(capsys, "solve", name, "--json")
        assert err == ""
        document = json.loads(out)
        assert document["termination"] in ("optimal", "infeasible"), name
        assert document["certificate"]["solver"] != "highs"


class Outside(HighsDeployment):
    """A formulation as another package would bring it."""

    name = "outside"

    def version(self) -> str:
        return "outside 1"

    def solve(self, request: SolveRequest) -> Outcome:
        return replace(super().solve(request), solver="outside")


class FalseClaim(Outside):
    """Claims half of what its plan costs."""

    def solve(self, request: SolveRequest) -> Outcome:
        honest = super().solve(request)
        claims = [StageClaim(c.name, (c.value or 0) / Fraction(2), c.bound) for c in honest.claims]
        return replace(honest, claims=tuple(claims))


class FalseInfeasible(Outside):
    """Claims that there is no plan."""

    def solve(self, request: SolveRequest) -> Outcome:
        return Outcome(self.name, Termination.INFEASIBLE, None, ())


class Overfull(Outside):
    """Puts every session on the one serving instance that cannot hold them."""

    def solve(self, request: SolveRequest) -> Outcome:
        selection = Selection((chosen(request, 2, (0, 1, 1)),))
        return Outcome(self.name, Termination.OPTIMAL, selection, ())


class SubOptimal(Outside):
    """Claims that a plan is the best which keeps every rule, but is not."""

    def solve(self, request: SolveRequest) -> Outcome:
        selection = Selection((chosen(request, 4, (0,)), chosen(request, 4, (1, 1))))
        value = evaluate(request.tables.instance, plan_of(request.tables, selection)).objective(
            "cost_per_on_time_session"
        )
        claim = StageClaim("cost_per_on_time_session", value, value)
        return Outcome(self.name, Termination.OPTIMAL, selection, (claim,))


def chosen(request: SolveRequest, tp: int, queue: tuple[int, ...]) -> SelectedInstance:
    """A serving instance of this TP degree in the first server that serves these cohorts."""
    kinds = [k.index for k in request.tables.kinds if k.candidate.footprint.parallel.tp == tp]
    return SelectedInstance(kinds[0], (0,), (queue,))


@dataclass(frozen=True)
class Point:
    """An entry point."""

    name: str
    target: type[Outside]

    def load(self) -> type[Outside]:
        return self.target


def install(monkeypatch: pytest.MonkeyPatch, target: type[Outside]) -> None:
    def found(group: str) -> list[Any]:
        return [*entry_points(group=group), Point("outside", target)]

    monkeypatch.setattr(backends, "entry_points", found)


def test_a_formulation_of_another_package_is_found_by_its_entry_point(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Outside)
    code, out, err = call(capsys, "solve", "mixed-wins", "--solver", "outside", "--json")
    assert (code, err) == (0, "")
    certificate = json.loads(out)["certificate"]
    assert (certificate["solver"], certificate["solver_version"]) == ("outside", "outside 1")
    assert json.loads(out)["termination"] == "optimal"
    assert "outside" in call(capsys, "solve", "mixed-wins", "--solver", "nobody")[2]


@pytest.mark.parametrize("max_oracle_plans", [second_opinion.MAX_ORACLE_PLANS, 1])
@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (FalseClaim, "claims cost_per_on_time_session = "),
        (FalseInfeasible, "claims infeasible, "),
        (Overfull, "breaks memory"),
        (SubOptimal, "claims optimal, "),
    ],
)
def test_a_lie_ends_with_exit_5_whoever_gives_the_second_opinion(
    liar: type[Outside],
    said: str,
    max_oracle_plans: int,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one plan allowed to the oracle, another solver has to find the lie."""
    install(monkeypatch, liar)
    monkeypatch.setattr(second_opinion, "MAX_ORACLE_PLANS", max_oracle_plans)
    code, out, err = call(capsys, "solve", "mixed-wins", "--solver", "outside")
    assert (code, out) == (5, "")
    assert one_error_line(err)
    assert "outside" in err
    assert said in err


@pytest.mark.parametrize("limit", ["0", "0.01"])
@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_a_run_without_time_never_claims_an_optimum(
    solver: str, limit: str, capsys: Capture, large_path: str
) -> None:
    arguments = ("solve", large_path, "--time-limit", limit, "--solver", solver, "--json")
    code, out, err = call(capsys, *arguments)
    assert err == ""
    document = json.loads(out)
    assert document["termination"] in ("feasible", "no_solution_found")
    assert document["limit"] == "time"
    assert code == (0 if document["plan"] else 4)


def test_equal_runs_print_equal_bytes(capsys: Capture) -> None:
    for name in DEPLOYMENTS:
        arguments = ("solve", name, "--json", "--threads", "1", "--seed", "7")
        first, second = (call(capsys, *arguments) for _ in range(2))
        assert without_seconds(first[1]) == without_seconds(second[1])


def test_equal_bytes_whatever_the_hash_seed() -> None:
    arguments = ("solve", "mixed-wins", "--json", "--threads", "1", "--seed", "7")
    first, second = (process(MAIN, *arguments, PYTHONHASHSEED=seed) for seed in "12")
    assert without_seconds(first.stdout) == without_seconds(second.stdout)


#: Says when a solver itself begins. A shell may have told its jobs to ignore SIGINT: undone.
INTERRUPTIBLE = """
import signal, sys
from ortools.sat.python.cp_model import CpSolver
from pulp import LpProblem
from cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
def announce(kind):
    begin = kind.solve
    def solve(*arguments, **options):
        print(kind.__name__, file=sys.stderr, flush=True)
        return begin(*arguments, **options)
    kind.solve = solve
announce({kind})
main()
"""


@pytest.fixture
def started(
    large_path: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """A solve in a process group of its own that would take ten minutes."""
    solver, kind = request.param
    (tmp_path / "temporary").mkdir()
    arguments = ["solve", large_path, "--json", "--time-limit", "10min", "--solver", solver]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE.format(kind=kind), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if group_lives(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("started", INTERRUPTED, ids=" ".join, indirect=True)
def test_an_interrupt_ends_with_the_best_verified_plan(
    started: subprocess.Popen[str], large_path: str, tmp_path: Path, capsys: Capture
) -> None:
    assert started.stderr is not None
    assert started.stderr.readline().strip() in (SAT, MILP)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.3)  # let the solver get going
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, set(err.split()) - {SAT, MILP}) == (0, set())
    document = json.loads(out)
    assert (document["termination"], document["limit"]) == ("feasible", "interrupted")
    path = tmp_path / "result.json"
    path.write_text(out, encoding="utf-8")
    assert call(capsys, "verify", large_path, str(path))[0] == 0
    assert not group_lives(started.pid), "a solver program was left running"
    assert list((tmp_path / "temporary").iterdir()) == []


def comparable(instance: Instance, executor: Executor) -> list[dict[str, Any]]:
    options = SolveOptions(threads=1, seed=7)
    waiting = [executor.submit(solve, instance, options) for _ in range(4)]
    return [done.result(timeout=100).model_dump(exclude={"seconds"}) for done in waiting]


def test_four_solves_at_once_agree_in_threads_and_in_processes() -> None:
    instance = load_instance("mixed-wins")
    with ThreadPoolExecutor(4) as threads:
        results = comparable(instance, threads)
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as processes:
        results += comparable(instance, processes)
    alone = solve(instance, SolveOptions(threads=1, seed=7)).model_dump(exclude={"seconds"})
    assert results == [alone] * 8
    assert alone["termination"] == "optimal"


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solve_leaves_nothing_in_its_read_only_folder(
    solver: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    monkeypatch.chdir(folder)
    code, _, err = call(capsys, "solve", "mixed-wins", "--solver", solver)
    assert (code, err) == (0, "")
    assert list(folder.iterdir()) == []


def test_cbc_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """No file may grow beyond 256 bytes, so that CBC's model cannot be written."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256)); "
    arguments = ("solve", "mixed-wins", "--solver", "cbc")
    done = process(limit + MAIN, *arguments, TMPDIR=str(tmp_path))
    assert done.returncode in (2, 4), done.stderr
    assert done.stdout == ""
    assert one_error_line(done.stderr)
    assert "CBC" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_cbc_without_a_temporary_folder_says_so_or_finds_another(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder is gone as well, so that it cannot be littered instead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "solve", "mixed-wins", "--solver", "cbc")[0] in (0, 2, 4)
    assert list(tmp_path.iterdir()) == []
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, out, err = call(capsys, "solve", "mixed-wins", "--solver", "cbc")
    assert code in (0, 2, 4)
    assert ("optimal, verified" in out, err) == (True, "") if code == 0 else one_error_line(err)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_library_prints_nothing(solver: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert CbcDeployment().unavailable() is None
    for name in DEPLOYMENTS:
        solve(load_instance(name), SolveOptions(solver=solver, threads=1))
    solve(parse_instance(large_document()), SolveOptions(solver=solver, time_limit_s=1))
    assert tuple(capfd.readouterr()) == ("", "")
