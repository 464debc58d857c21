"""thunder_fuser: a fusion compiler for PyTorch programs, as a Lightning Thunder executor."""

from typing import TYPE_CHECKING

from thunder_fuser._names import export
from thunder_fuser._registration import register_with_thunder

__version__ = "0.1.0"

if TYPE_CHECKING:
    from thunder_fuser.definition import DataType as DataType
    from thunder_fuser.definition import FusionCache as FusionCache
    from thunder_fuser.definition import FusionDefinition as FusionDefinition
    from thunder_fuser.definition import LRUCache as LRUCache
    from thunder_fuser.definition import LruFusionCache as LruFusionCache
    from thunder_fuser.definition import PythonProfiler as PythonProfiler
    from thunder_fuser.definition import TensorView as TensorView
    from thunder_fuser.definition import Val as Val
    from thunder_fuser.definition import compute_contiguity as compute_contiguity
    from thunder_fuser.definition import compute_tensor_descriptor as compute_tensor_descriptor
    from thunder_fuser.definition import ops as ops
    from thunder_fuser.definition import version as version
    from thunder_fuser.errors import CompileError as CompileError
    from thunder_fuser.errors import FuserError as FuserError
    from thunder_fuser.errors import FuserIndexError as FuserIndexError
    from thunder_fuser.errors import FuserTypeError as FuserTypeError
    from thunder_fuser.errors import FuserValueError as FuserValueError
    from thunder_fuser.errors import InternalError as InternalError
    from thunder_fuser.errors import KernelError as KernelError
    from thunder_fuser.errors import Refusal as Refusal
    from thunder_fuser.errors import TargetError as TargetError
    from thunder_fuser.executor import FusionReport as FusionReport
    from thunder_fuser.executor import executor as executor
    from thunder_fuser.executor import fusions as fusions
    from thunder_fuser.executor import fusions_of_trace as fusions_of_trace
    from thunder_fuser.executor import refusals as refusals
    from thunder_fuser.executor import segments as segments
    from thunder_fuser.nvfuser import install_as_nvfuser as install_as_nvfuser
    from thunder_fuser.options import Options as Options
    from thunder_fuser.options import options as options

export(
    __name__,
    {
        "executor": "thunder_fuser.executor",
        "fusions": "thunder_fuser.executor",
        "fusions_of_trace": "thunder_fuser.executor",
        "refusals": "thunder_fuser.executor",
        "segments": "thunder_fuser.executor",
        "FusionReport": "thunder_fuser.executor",
        "FusionDefinition": "thunder_fuser.definition",
        "FusionCache": "thunder_fuser.definition",
        "LRUCache": "thunder_fuser.definition",
        "LruFusionCache": "thunder_fuser.definition",
        "PythonProfiler": "thunder_fuser.definition",
        "TensorView": "thunder_fuser.definition",
        "Val": "thunder_fuser.definition",
        "compute_contiguity": "thunder_fuser.definition",
        "DataType": "thunder_fuser.definition",
        "compute_tensor_descriptor": "thunder_fuser.definition",
        "ops": "thunder_fuser.definition",
        "version": "thunder_fuser.definition",
        "install_as_nvfuser": "thunder_fuser.nvfuser",
        "Options": "thunder_fuser.options",
        "options": "thunder_fuser.options",
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
