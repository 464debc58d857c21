"""Sharding: one index algebra for the elements that each device holds. From a mesh and annotations
follow the placements of every tensor, the fusion of each device, and the communication.
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
