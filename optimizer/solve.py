"""Wiring of a solve: tables, first incumbents, solvers, verification, second opinion, result."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from instances.instance import Instance
from optimizer.backends import Finished, Runner, no_backend, run_until_proof
from optimizer.errors import InputError, PlannerError, TooLargeError
from optimizer.explain import CandidateReport, candidate_reports
from optimizer.incumbent import Incumbent
from optimizer.objectives import objective_terms
from optimizer.pricing import build_tables
from optimizer.protocols import SolveRequest, Termination
from optimizer.report_result import SolveRecord, result_document
from optimizer.result import ResultDocument
from optimizer.second_opinion import SecondOpinion, by_backend, by_bound, by_oracle
from optimizer.tables import ProblemTables

#: Solvers of "auto", in the order in which a single thread asks them.
AUTO_SOLVERS = ("highs", "cp-sat")
#: All solvers, in the order in which a second opinion is sought.
SECOND_SOLVERS = ("highs", "cp-sat", "cbc")
#: Problems this small are not worth starting two solvers for: the oracle checks them.
SMALL_KINDS, SMALL_SESSIONS = 40, 6


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to solve: which solver, how long, with how many threads, from which seed."""

    solver: str = "auto"
    time_limit_s: float = 60.0
    threads: int = 0
    seed: int = 0

    def num_threads(self) -> int:
        """Threads to use; 0 means as many as the machine has processors."""
        return self.threads or os.cpu_count() or 1


def solve(
    instance: Instance,
    options: SolveOptions | None = None,
    *,
    on_incumbent: Callable[[Incumbent], None] | None = None,
    stop: threading.Event | None = None,
) -> ResultDocument:
    """Find a plan for a problem instance, prove it, verify it.

    Parameters
    ----------
    instance : the problem instance.
    options : solver, limits, seed; see `SolveOptions`.
    on_incumbent : called, from other threads too, with every better verified plan.
    stop : set it to end early with the best verified plan; so does KeyboardInterrupt.

    Returns
    -------
    ResultDocument : also when nothing fits or no plan was found in time.

    Raises
    ------
    InputError : an option is out of range.
    MismatchError : a solver's claim and the exact evaluation differ.
    BackendUnavailable, TooLargeError : no solver can take the problem.
    """
    options = options or SolveOptions()
    _check_options(options)
    started = time.monotonic()
    tables = build_tables(instance)
    reports = candidate_reports(tables)
    incumbent = Incumbent(tables, on_incumbent)
    for report in reports:
        incumbent.offer(report.plan, report.evaluation)
    request = SolveRequest(
        tables,
        objective_terms(instance),
        started + options.time_limit_s,
        options.num_threads(),
        options.seed,
        stop or threading.Event(),
        incumbent.offer_selection,
    )
    record = _decide(tables, reports, request, options, incumbent)
    return result_document(record, options, time.monotonic() - started)


def _check_options(options: SolveOptions) -> None:
    if not options.time_limit_s >= 0 or options.time_limit_s == float("inf"):
        raise InputError("options", "time_limit_s", "must be a finite number of seconds, 0 or more")
    if not 0 <= options.threads <= 1024:
        raise InputError("options", "threads", "must be between 0 (all) and 1024", options.threads)
    if not 0 <= options.seed < 2**31:
        raise InputError("options", "seed", "must be between 0 and 2147483647", options.seed)


def _solvers(options: SolveOptions, tables: ProblemTables) -> tuple[str, ...]:
    if options.solver != "auto":
        return (options.solver,)
    is_small = len(tables.kinds) <= SMALL_KINDS and tables.num_sessions <= SMALL_SESSIONS
    return AUTO_SOLVERS[:1] if is_small else AUTO_SOLVERS


def _decide(
    tables: ProblemTables,
    reports: list[CandidateReport],
    request: SolveRequest,
    options: SolveOptions,
    incumbent: Incumbent,
) -> SolveRecord:
    """Run solvers until a proof, then seek the second opinion; an interrupt keeps the best plan."""
    record = SolveRecord(tables, request.terms, reports, incumbent)
    if not tables.kinds or tables.layouts == ():
        record.opinion = by_oracle(tables, None) or by_bound(tables, request.terms, None)
        record.termination = Termination.INFEASIBLE
        return record
    runner, failures = Runner(request), list[Finished]()
    names, threads = _solvers(options, tables), request.threads
    try:
        finished = run_until_proof(runner, names, threads, failures.append)
        if finished is None and len(failures) == len(names) and options.solver == "auto":
            rest = tuple(name for name in AUTO_SOLVERS if name not in names)
            if rest:
                names += rest
                finished = run_until_proof(runner, rest, threads, failures.append)
        if finished is None and len(failures) == len(names):
            _excuse(record, failures, request)
            return record
        record.take(finished)
        if record.is_claimed_proof:
            record.opinion = _second_opinion(record, runner, names, threads)
        record.conclude()
    except KeyboardInterrupt:
        record.limit = "interrupted"
    finally:
        runner.stop()
    return record


def _excuse(record: SolveRecord, failures: list[Finished], request: SolveRequest) -> None:
    """Keep a verified plan that no solver could improve on; raises where there is no excuse."""
    error = no_backend(failures)
    if time.monotonic() >= request.deadline:
        record.limit = "time"
    elif isinstance(error, TooLargeError) and record.incumbent.plan is not None:
        record.limit, record.reason = "size", str(error)
    else:
        raise error


def _second_opinion(
    record: SolveRecord, runner: Runner, names: tuple[str, ...], threads: int
) -> SecondOpinion:
    values = record.values()
    return (
        by_bound(record.tables, record.terms, values)
        or by_oracle(record.tables, values)
        or by_backend(runner, [n for n in SECOND_SOLVERS if n != record.solver], threads, values)
    )


__all__ = ["PlannerError", "SolveOptions", "solve"]
