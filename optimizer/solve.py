"""Wiring of a solve: tables, first incumbents, solvers, verification, second opinion, result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from instances.instance import Instance
from optimizer.backends import Finished, Runner, no_backend, run_until_proof
from optimizer.errors import TooLargeError
from optimizer.explain import CandidateReport, candidate_reports
from optimizer.incumbent import Incumbent
from optimizer.objectives import budget_ceilings, objective_terms
from optimizer.options import SolveOptions
from optimizer.pricing import build_tables
from optimizer.protocols import Ceiling, DeploymentCounts, SolveRequest
from optimizer.record import SolveRecord
from optimizer.result import ResultDocument
from optimizer.result_document import result_document
from optimizer.second_opinion import SecondOpinion, by_backend, by_bound, by_oracle
from optimizer.tables import ProblemTables

#: Solvers of "auto", in the order in which a single thread asks them.
AUTO_SOLVERS = ("highs", "cp-sat")
#: All solvers, in the order in which a second opinion is sought.
SECOND_SOLVERS = ("highs", "cp-sat", "cbc")
#: Candidates are priced for at least so long: without any there is nothing to show.
LEAST_PRICING_S = 2.0
#: Problems this small are not worth starting two solvers for: the oracle checks them.
SMALL_KINDS, SMALL_SESSIONS = 40, 6


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
    options.check()
    started = time.monotonic()
    tables, is_interrupted = price_in_time(instance, started, options.time_limit_s)
    incumbent, reports = Incumbent(tables, on_incumbent), list[CandidateReport]()
    try:
        for report in candidate_reports(tables):
            reports.append(report)
            incumbent.offer(report.plan, report.evaluation)
    except KeyboardInterrupt:
        is_interrupted = True
    if is_interrupted:
        terms = objective_terms(instance)
        record = SolveRecord(tables, terms, reports, incumbent, limit="interrupted")
    else:
        until = started + options.time_limit_s
        record = settle(incumbent, options, until, reports=reports, stop=stop)
    return result_document(record, options, time.monotonic() - started)


def settle(
    incumbent: Incumbent,
    options: SolveOptions,
    until: float,
    *,
    reports: list[CandidateReport] | None = None,
    ceilings: tuple[Ceiling, ...] = (),
    excluded: tuple[DeploymentCounts, ...] = (),
    required: DeploymentCounts | None = None,
    is_whole: bool = True,
    stop: threading.Event | None = None,
) -> SolveRecord:
    """Decide the priced problem of an incumbent by `until`, a `time.monotonic()` value.

    Plans must keep `ceilings`, too; deployments listed in `excluded` do not count, and where one is
    `required` no other does. Unless the tables are `is_whole`, they lack plans
    of their instance on purpose, and the oracle, which sees the instance, is not asked. Raises as
    `solve` does.
    """
    tables = incumbent.tables
    request = SolveRequest(
        tables,
        objective_terms(tables.instance),
        until,
        options.num_threads(),
        options.seed,
        on_selection=incumbent.offer_selection,
        ceilings=(*budget_ceilings(tables.instance), *ceilings),
        excluded=excluded,
        required=required,
        is_whole=is_whole and not (ceilings or excluded or required),
    )
    return _decide(tables, reports or [], request, options, incumbent, stop)


def price_in_time(
    instance: Instance, started: float, time_limit_s: float
) -> tuple[ProblemTables, bool]:
    """Price the candidates in time; after an interrupt, as many as a moment allows."""
    patience_s = max(time_limit_s, LEAST_PRICING_S)
    try:
        return build_tables(
            instance, lambda share: time.monotonic() > started + share * patience_s
        ), False
    except KeyboardInterrupt:
        begun = time.monotonic()
        return build_tables(
            instance, lambda share: time.monotonic() > begun + share * LEAST_PRICING_S
        ), True


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
    stop: threading.Event | None,
) -> SolveRecord:
    """Run solvers until a proof, then seek the second opinion; an interrupt keeps the best plan."""
    record = SolveRecord(tables, request.terms, reports, incumbent)
    if not tables.is_complete:
        record.limit, record.reason = "time", "not every candidate was priced in time"
        return record
    if not tables.kinds or tables.layouts == ():
        record.claim_infeasible()
        by_plans = by_oracle(tables, None) if request.is_whole else None
        record.opinion = by_plans or by_bound(tables, request.terms, None)
        record.conclude(is_stopped=False)
        return record
    runner, failures = Runner(request, stop), list[Finished]()
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
            record.opinion = _second_opinion(record, runner, threads)
        record.conclude(runner.is_stopped)
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


def _second_opinion(record: SolveRecord, runner: Runner, threads: int) -> SecondOpinion:
    claims = None if record.plan is None else record.claims
    return (
        by_bound(record.tables, record.terms, claims)
        or (by_oracle(record.tables, claims) if runner.request.is_whole else None)
        or by_backend(runner, [n for n in SECOND_SOLVERS if n != record.solver], threads, claims)
    )
