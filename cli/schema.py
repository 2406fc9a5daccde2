"""`supernode schema`: the JSON Schema of every document."""

from __future__ import annotations

import json
from importlib import import_module

import click

#: Where the model of each document is.
DOCUMENTS = {
    "instance": "instances.instance:Instance",
    "result": "optimizer.result:ResultDocument",
    "plan": "optimizer.result:PlanDocument",
    "side-result": "optimizer.side.result:SideResultDocument",
    "sweep": "instances.sweep:SweepFile",
    "sweep-point": "optimizer.sweeps.rows:SweepPoint",
    "frontier-piece": "optimizer.sweeps.rows:FrontierPiece",
    "pareto": "optimizer.frontiers.pareto:ParetoDocument",
    "sensitivity": "optimizer.sensitivities.document:SensitivityDocument",
    "alternatives": "optimizer.result:AlternativesDocument",
    "conflict": "optimizer.conflicts.document:ConflictDocument",
    "calibration": "optimizer.calibration.document:CalibrationDocument",
}


@click.command()
@click.argument("kind", type=click.Choice(list(DOCUMENTS)), default="instance")
def schema(kind: str) -> None:
    """Print the JSON Schema of one KIND of document, by default of problem instances.

    In files of rows the swept fields, which the schemas of rows keep in `swept`, are columns.
    """
    module, _, name = DOCUMENTS[kind].partition(":")
    model = getattr(import_module(module), name)
    click.echo(json.dumps(model.model_json_schema(), indent=2, ensure_ascii=False))
