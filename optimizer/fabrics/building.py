"""From a topology as written to its fabric: links, paths and nodes."""

from __future__ import annotations

from instances.topology import (
    LeafSpineTopology,
    MeshTopology,
    NumaTopology,
    SwitchedTopology,
    Topology,
    TorusTopology,
)
from optimizer.fabrics.fabric import Fabric
from optimizer.fabrics.leaf_spine import LeafSpineFabric
from optimizer.fabrics.mesh import MeshFabric
from optimizer.fabrics.numa import NumaFabric
from optimizer.fabrics.servers import ServersFabric
from optimizer.fabrics.switched import SwitchedFabric
from optimizer.fabrics.torus import TorusFabric


def build_fabric(topology: Topology) -> Fabric:
    """Return the directed links of a topology and the ways of messages over them (6.5.1)."""
    if isinstance(topology, SwitchedTopology):
        return SwitchedFabric(topology)
    if isinstance(topology, LeafSpineTopology):
        return LeafSpineFabric(topology)
    if isinstance(topology, TorusTopology):
        return TorusFabric(topology)
    if isinstance(topology, MeshTopology):
        return MeshFabric(topology)
    if isinstance(topology, NumaTopology):
        return NumaFabric(topology)
    return ServersFabric(topology, build_fabric(topology.server))
