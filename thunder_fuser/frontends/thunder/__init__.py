"""The Thunder side: claims, regions, the call that stands for a fusion, and reports about both."""

from thunder_fuser.frontends.thunder import dtensors, recipes, user_lines
from thunder_fuser.frontends.thunder.fuser import executor
from thunder_fuser.frontends.thunder.meshes import mesh_plans
from thunder_fuser.frontends.thunder.report import FusionReport, fusions, fusions_of_trace, refusals
from thunder_fuser.frontends.thunder.segmented import segments

__all__ = [
    "FusionReport",
    "executor",
    "fusions",
    "fusions_of_trace",
    "mesh_plans",
    "refusals",
    "segments",
]

recipes.register()
user_lines.register()
dtensors.register()
