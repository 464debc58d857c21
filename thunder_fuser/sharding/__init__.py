"""Sharding: one algebra says which device holds what. A mesh and annotations in; placements of
every tensor, the fusion of each device, and what is communicated out.
"""

from thunder_fuser.sharding.localise import localise
from thunder_fuser.sharding.mesh import DeviceMesh, Partial, Replicate, Shard, outer
from thunder_fuser.sharding.propagate import propagate
from thunder_fuser.sharding.shardings import Communication, Shardings
from thunder_fuser.sharding.simulate import simulate

__all__ = [
    "Communication",
    "DeviceMesh",
    "Partial",
    "Replicate",
    "Shard",
    "Shardings",
    "localise",
    "outer",
    "propagate",
    "simulate",
]
