"""Lightning Thunder frontend: the executor, its claims and regions, and reports on fusions."""

from thunder_fuser.frontends.thunder import fake_arguments, patches, recipes, updates
from thunder_fuser.frontends.thunder.distributed import dtensors
from thunder_fuser.frontends.thunder.fuser import executor
from thunder_fuser.frontends.thunder.plans.meshes import mesh_plans
from thunder_fuser.frontends.thunder.plans.report import (
    FusionReport,
    fusions,
    fusions_of_trace,
    refusals,
)
from thunder_fuser.frontends.thunder.plans.segmented import segments

__all__ = [
    "FusionReport",
    "executor",
    "fusions",
    "fusions_of_trace",
    "mesh_plans",
    "refusals",
    "segments",
]

fake_arguments.register()
recipes.register()
patches.register()
updates.register()
dtensors.register()
