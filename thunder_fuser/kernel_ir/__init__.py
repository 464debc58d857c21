"""Kernel IR: the statements of a kernel, independent of the output language.

A kernel body is executed by every thread of every block of the grid. Its statements declare
registers, move memory, compute and synchronise; their expressions are values of the program (with
dtypes) or indices. Template modes do not appear: lowering has turned them into statements.
`printer.py` lists a kernel for readers, `codegen/` prints it for a compiler.

The listing of y = x * x, 1,000 elements in vectors of 4:

    kernel pointwise mul (T0: const Float*, T1: Float*)
    1 blocks of 256 threads, indices Int32:
      u = block * 256 + thread
      if u < 250:
        x0: Float[4]
        x0 = load 4 at T0 + 4 * u
        y0: Float[4]
        for v in 0..4, vector:
          t1: Float = mul(x0[v], x0[v])
          y0[v] = t1
        store 4 at T1 + 4 * u: y0
"""

from thunder_fuser.kernel_ir.expressions import LANE as LANE
from thunder_fuser.kernel_ir.expressions import Address as Address
from thunder_fuser.kernel_ir.expressions import And as And
from thunder_fuser.kernel_ir.expressions import Apply as Apply
from thunder_fuser.kernel_ir.expressions import Binary as Binary
from thunder_fuser.kernel_ir.expressions import BoolConst as BoolConst
from thunder_fuser.kernel_ir.expressions import CheckedPosition as CheckedPosition
from thunder_fuser.kernel_ir.expressions import ClampedAdd as ClampedAdd
from thunder_fuser.kernel_ir.expressions import Convert as Convert
from thunder_fuser.kernel_ir.expressions import DivideByConstant as DivideByConstant
from thunder_fuser.kernel_ir.expressions import DynamicRegister as DynamicRegister
from thunder_fuser.kernel_ir.expressions import Element as Element
from thunder_fuser.kernel_ir.expressions import Expr as Expr
from thunder_fuser.kernel_ir.expressions import IndexNumber as IndexNumber
from thunder_fuser.kernel_ir.expressions import Int as Int
from thunder_fuser.kernel_ir.expressions import IntCast as IntCast
from thunder_fuser.kernel_ir.expressions import LaunchIndex as LaunchIndex
from thunder_fuser.kernel_ir.expressions import Literal as Literal
from thunder_fuser.kernel_ir.expressions import MakeComplex as MakeComplex
from thunder_fuser.kernel_ir.expressions import MappedRank as MappedRank
from thunder_fuser.kernel_ir.expressions import Min as Min
from thunder_fuser.kernel_ir.expressions import Narrow as Narrow
from thunder_fuser.kernel_ir.expressions import Negative as Negative
from thunder_fuser.kernel_ir.expressions import OpaqueZero as OpaqueZero
from thunder_fuser.kernel_ir.expressions import Or as Or
from thunder_fuser.kernel_ir.expressions import RandomNumber as RandomNumber
from thunder_fuser.kernel_ir.expressions import RawLoad as RawLoad
from thunder_fuser.kernel_ir.expressions import Reinterpret as Reinterpret
from thunder_fuser.kernel_ir.expressions import Round as Round
from thunder_fuser.kernel_ir.expressions import Select as Select
from thunder_fuser.kernel_ir.expressions import UnsignedBinary as UnsignedBinary
from thunder_fuser.kernel_ir.expressions import Var as Var
from thunder_fuser.kernel_ir.expressions import add as add
from thunder_fuser.kernel_ir.expressions import at as at
from thunder_fuser.kernel_ir.expressions import equal as equal
from thunder_fuser.kernel_ir.expressions import less as less
from thunder_fuser.kernel_ir.expressions import times as times
from thunder_fuser.kernel_ir.kernel import Bound as Bound
from thunder_fuser.kernel_ir.kernel import Constant as Constant
from thunder_fuser.kernel_ir.kernel import KernelIR as KernelIR
from thunder_fuser.kernel_ir.kernel import Parameter as Parameter
from thunder_fuser.kernel_ir.kernel import Scratch as Scratch
from thunder_fuser.kernel_ir.reductions import Accumulate as Accumulate
from thunder_fuser.kernel_ir.reductions import AccumulateVector as AccumulateVector
from thunder_fuser.kernel_ir.reductions import AsElement as AsElement
from thunder_fuser.kernel_ir.reductions import BlockReduce as BlockReduce
from thunder_fuser.kernel_ir.reductions import BlockScan as BlockScan
from thunder_fuser.kernel_ir.reductions import Combine as Combine
from thunder_fuser.kernel_ir.reductions import FinalizeAccumulator as FinalizeAccumulator
from thunder_fuser.kernel_ir.reductions import GroupedReduce as GroupedReduce
from thunder_fuser.kernel_ir.reductions import InitAccumulator as InitAccumulator
from thunder_fuser.kernel_ir.reductions import Lane as Lane
from thunder_fuser.kernel_ir.reductions import OuterBlockReduce as OuterBlockReduce
from thunder_fuser.kernel_ir.reductions import Present as Present
from thunder_fuser.kernel_ir.reductions import ReducePartials as ReducePartials
from thunder_fuser.kernel_ir.reductions import WarpReduce as WarpReduce
from thunder_fuser.kernel_ir.statements import WRITTEN_OUT as WRITTEN_OUT
from thunder_fuser.kernel_ir.statements import Assign as Assign
from thunder_fuser.kernel_ir.statements import AsyncCopies as AsyncCopies
from thunder_fuser.kernel_ir.statements import AwaitCopies as AwaitCopies
from thunder_fuser.kernel_ir.statements import Barrier as Barrier
from thunder_fuser.kernel_ir.statements import Body as Body
from thunder_fuser.kernel_ir.statements import ClusterArrive as ClusterArrive
from thunder_fuser.kernel_ir.statements import ClusterWait as ClusterWait
from thunder_fuser.kernel_ir.statements import Comment as Comment
from thunder_fuser.kernel_ir.statements import CopyAsync as CopyAsync
from thunder_fuser.kernel_ir.statements import DrawNumbers as DrawNumbers
from thunder_fuser.kernel_ir.statements import Flip as Flip
from thunder_fuser.kernel_ir.statements import GridBarrier as GridBarrier
from thunder_fuser.kernel_ir.statements import If as If
from thunder_fuser.kernel_ir.statements import Let as Let
from thunder_fuser.kernel_ir.statements import LetPointer as LetPointer
from thunder_fuser.kernel_ir.statements import LoadFence as LoadFence
from thunder_fuser.kernel_ir.statements import Loop as Loop
from thunder_fuser.kernel_ir.statements import LoopKind as LoopKind
from thunder_fuser.kernel_ir.statements import Pack as Pack
from thunder_fuser.kernel_ir.statements import PickLanes as PickLanes
from thunder_fuser.kernel_ir.statements import Prefetch as Prefetch
from thunder_fuser.kernel_ir.statements import Registers as Registers
from thunder_fuser.kernel_ir.statements import Scope as Scope
from thunder_fuser.kernel_ir.statements import SetLane as SetLane
from thunder_fuser.kernel_ir.statements import Shared as Shared
from thunder_fuser.kernel_ir.statements import Stmt as Stmt
from thunder_fuser.kernel_ir.statements import TileLoad as TileLoad
from thunder_fuser.kernel_ir.statements import TileStore as TileStore
from thunder_fuser.kernel_ir.statements import TransposeTile as TransposeTile
from thunder_fuser.kernel_ir.statements import Unpack as Unpack
from thunder_fuser.kernel_ir.statements import VectorLoad as VectorLoad
from thunder_fuser.kernel_ir.statements import VectorStore as VectorStore
from thunder_fuser.kernel_ir.statements import fields_of as fields_of
from thunder_fuser.kernel_ir.types import WORD as WORD
from thunder_fuser.kernel_ir.types import PairedLanes as PairedLanes
from thunder_fuser.kernel_ir.types import RawVector as RawVector
from thunder_fuser.kernel_ir.types import Reducer as Reducer
from thunder_fuser.kernel_ir.types import ReducerLanes as ReducerLanes
from thunder_fuser.kernel_ir.types import Type as Type
