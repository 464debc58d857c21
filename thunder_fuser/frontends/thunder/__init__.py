"""Lightning Thunder frontend: the executor, its claims and regions, and reports on fusions."""

from thunder_fuser.frontends.thunder import recipes
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
from thunder_fuser.frontends.thunder.trace import (
    broadcasts,
    dtype_comparisons,
    grad_rules,
    layouts,
    module_hooks,
    repeated_arguments,
    subscripts,
    update_gradients,
    updated_arguments,
    user_lines,
)

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
broadcasts.register()
dtype_comparisons.register()
grad_rules.register()
layouts.register()
module_hooks.register()
repeated_arguments.register()
subscripts.register()
update_gradients.register()
updated_arguments.register()
user_lines.register()
dtensors.register()
