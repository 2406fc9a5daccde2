"""What a placement problem is: schema, quantities, catalog, JSON."""

from instances.errors import InputError
from instances.fleet import Fault, Fleet, Pool
from instances.formats import ModelFormats
from instances.hardware import AcceleratorSpec, FabricSpec, MeasuredCollective, ServerSpec
from instances.instance import Instance, Runtime, Search
from instances.io import example_names, load_instance, parse_instance
from instances.model import ModelSpec
from instances.objective import Objective
from instances.workload import Cohort, Workload

__all__ = [
    "AcceleratorSpec",
    "Cohort",
    "FabricSpec",
    "Fault",
    "Fleet",
    "InputError",
    "Instance",
    "MeasuredCollective",
    "ModelFormats",
    "ModelSpec",
    "Objective",
    "Pool",
    "Runtime",
    "Search",
    "ServerSpec",
    "Workload",
    "example_names",
    "load_instance",
    "parse_instance",
]
