"""thunder_fuser: a fusion compiler for PyTorch programs, as a Lightning Thunder executor."""

from typing import TYPE_CHECKING

from thunder_fuser._names import export
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
    from thunder_fuser.errors import Refusal as Refusal
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
    from thunder_fuser.frontends.thunder import refusals as refusals
    from thunder_fuser.frontends.thunder import segments as segments
    from thunder_fuser.nvfuser import install_as_nvfuser as install_as_nvfuser

export(
    __name__,
    {
        "executor": "thunder_fuser.frontends.thunder",
        "fusions": "thunder_fuser.frontends.thunder",
        "fusions_of_trace": "thunder_fuser.frontends.thunder",
        "refusals": "thunder_fuser.frontends.thunder",
        "segments": "thunder_fuser.frontends.thunder",
        "FusionReport": "thunder_fuser.frontends.thunder",
        "FusionDefinition": "thunder_fuser.frontends.definition",
        "FusionCache": "thunder_fuser.frontends.definition",
        "LRUCache": "thunder_fuser.frontends.definition",
        "LruFusionCache": "thunder_fuser.frontends.definition",
        "PythonProfiler": "thunder_fuser.frontends.definition",
        "TensorView": "thunder_fuser.frontends.definition",
        "Val": "thunder_fuser.frontends.definition",
        "compute_contiguity": "thunder_fuser.frontends.definition",
        "DataType": "thunder_fuser.frontends.definition",
        "compute_tensor_descriptor": "thunder_fuser.frontends.definition",
        "ops": "thunder_fuser.frontends.definition",
        "version": "thunder_fuser.frontends.definition",
        "install_as_nvfuser": "thunder_fuser.nvfuser",
        "Options": "thunder_fuser.config",
        "options": "thunder_fuser.config",
        "Refusal": "thunder_fuser.errors",
        "FuserError": "thunder_fuser.errors",
        "FuserValueError": "thunder_fuser.errors",
        "FuserTypeError": "thunder_fuser.errors",
        "FuserIndexError": "thunder_fuser.errors",
        "CompileError": "thunder_fuser.errors",
        "KernelError": "thunder_fuser.errors",
        "TargetError": "thunder_fuser.errors",
        "InternalError": "thunder_fuser.errors",
    },
)

register_with_thunder()
