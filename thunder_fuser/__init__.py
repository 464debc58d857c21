"""thunder_fuser: a fusion compiler for PyTorch programs, as a Lightning Thunder executor.

Public names are imported when they are first used (PEP 562): `import thunder_fuser` costs a
millisecond, where torch and Thunder take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from thunder_fuser._registration import register_with_thunder

__version__ = "0.1.0"

if TYPE_CHECKING:
    from thunder_fuser.config import Options as Options
    from thunder_fuser.config import options as options
    from thunder_fuser.errors import CompileError as CompileError
    from thunder_fuser.errors import FuserError as FuserError
    from thunder_fuser.errors import FuserIndexError as FuserIndexError
    from thunder_fuser.errors import FuserTypeError as FuserTypeError
    from thunder_fuser.errors import FuserValueError as FuserValueError
    from thunder_fuser.errors import InternalError as InternalError
    from thunder_fuser.errors import KernelError as KernelError
    from thunder_fuser.errors import LimitError as LimitError
    from thunder_fuser.errors import LoadError as LoadError
    from thunder_fuser.errors import Refusal as Refusal
    from thunder_fuser.errors import ResourceError as ResourceError
    from thunder_fuser.errors import TargetError as TargetError
    from thunder_fuser.frontends.definition import DataType as DataType
    from thunder_fuser.frontends.definition import FusionCache as FusionCache
    from thunder_fuser.frontends.definition import FusionDefinition as FusionDefinition
    from thunder_fuser.frontends.definition import LRUCache as LRUCache
    from thunder_fuser.frontends.definition import LruFusionCache as LruFusionCache
    from thunder_fuser.frontends.definition import PythonProfiler as PythonProfiler
    from thunder_fuser.frontends.definition import TensorView as TensorView
    from thunder_fuser.frontends.definition import Val as Val
    from thunder_fuser.frontends.definition import compute_contiguity as compute_contiguity
    from thunder_fuser.frontends.definition import (
        compute_tensor_descriptor as compute_tensor_descriptor,
    )
    from thunder_fuser.frontends.definition import ops as ops
    from thunder_fuser.frontends.definition import version as version
    from thunder_fuser.frontends.thunder import FusionReport as FusionReport
    from thunder_fuser.frontends.thunder import executor as executor
    from thunder_fuser.frontends.thunder import fusions as fusions
    from thunder_fuser.frontends.thunder import fusions_of_trace as fusions_of_trace
    from thunder_fuser.frontends.thunder import mesh_plans as mesh_plans
    from thunder_fuser.frontends.thunder import refusals as refusals
    from thunder_fuser.frontends.thunder import segments as segments
    from thunder_fuser.inspect import Report as Report
    from thunder_fuser.inspect import report as report
    from thunder_fuser.nvfuser import install_as_nvfuser as install_as_nvfuser

_HOMES = {
    "thunder_fuser.config": (
        "Options",
        "options",
    ),
    "thunder_fuser.errors": (
        "CompileError",
        "FuserError",
        "FuserIndexError",
        "FuserTypeError",
        "FuserValueError",
        "InternalError",
        "KernelError",
        "LimitError",
        "LoadError",
        "Refusal",
        "ResourceError",
        "TargetError",
    ),
    "thunder_fuser.frontends.definition": (
        "DataType",
        "FusionCache",
        "FusionDefinition",
        "LRUCache",
        "LruFusionCache",
        "PythonProfiler",
        "TensorView",
        "Val",
        "compute_contiguity",
        "compute_tensor_descriptor",
        "ops",
        "version",
    ),
    "thunder_fuser.frontends.thunder": (
        "FusionReport",
        "executor",
        "fusions",
        "fusions_of_trace",
        "mesh_plans",
        "refusals",
        "segments",
    ),
    "thunder_fuser.inspect": ("Report", "report"),
    "thunder_fuser.nvfuser": ("install_as_nvfuser",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_thunder()
