"""The Thunder side: claims, regions, the call that stands for a fusion, and reports about both."""

from thunder_fuser.executor import recipes, user_lines
from thunder_fuser.executor.fuser import executor
from thunder_fuser.executor.report import FusionReport, fusions, fusions_of_trace, refusals
from thunder_fuser.executor.segmented import segments

__all__ = ["FusionReport", "executor", "fusions", "fusions_of_trace", "refusals", "segments"]

recipes.register()
user_lines.register()
