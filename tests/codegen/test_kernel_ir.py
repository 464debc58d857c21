"""Kernel IR: what readers see of it, and that each statement and expression has words and text."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable

import pytest

from tests.zoo.template_programs import (
    norm_backward,
    norm_of_all,
    rms_norm,
    scanned,
    transposed,
)
from thunder_fuser import kernel_ir as ir
from thunder_fuser.codegen.cuda_statements import CudaText
from thunder_fuser.codegen.headers import template_dir
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.kernel_ir.printer import ListingText, listing
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower


@pytest.mark.parametrize("printer", [CudaText, ListingText])
def test_a_printer_has_all_statements_and_expressions(
    printer: type[CudaText | ListingText],
) -> None:
    assert printer.STATEMENTS.keys() == set(typing.get_args(ir.Stmt))
    assert printer.EXPRESSIONS.keys() == set(typing.get_args(ir.Expr))


@pytest.mark.parametrize(
    "node",
    [
        *(ir.OpaqueZero, ir.RawLoad, ir.RawVector, ir.DivideByConstant, ir.CheckedPosition),
        *(ir.DynamicRegister, ir.WarpReduce, ir.BlockReduce, ir.ReducePartials),
        *(ir.OuterBlockReduce, ir.BlockScan, ir.GridBarrier, ir.ClusterArrive, ir.ClusterWait),
        *(ir.AsyncCopies, ir.TransposeTile),
    ],
)
def test_device_code_has_the_names_of_nodes(node: type) -> None:
    """A function in snake case, or a type as it is."""
    function = re.sub(r"(?<!^)(?=[A-Z])", "_", node.__name__).lower()
    texts = [path.read_text() for path in template_dir().glob("*.cuh")]
    defined = re.compile(rf"TF_DEVICE .*\b{function}\(|(?:struct|using) {node.__name__}\b")
    assert any(defined.search(text) for text in texts)


def kernel_ir_of(definition: FusionDefinition) -> ir.KernelIR:
    plan = CompiledFusion(definition.fusion).plan()
    (segment,) = (s for s in plan.segments if s.kernels)
    return lower(schedule_segment(segment, H200), segment.body.updates)


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("reduction_persistent_registers", rms_norm(128, 16384)),
        ("reduction_grid_with_epilogue", norm_of_all(1 << 24)),
        ("reduction_rows_and_column_accumulators", norm_backward(4096, 1024)),
        ("transpose_partial_tiles", transposed(1000, 333)),
        ("scan_tiles", scanned(8192, 16384)),
    ],
)
def test_listing(
    golden: Callable[[str, str], None], name: str, definition: FusionDefinition
) -> None:
    golden(f"{name}.kir", f"{listing(kernel_ir_of(definition))}\n")


def test_equal_programs_are_equal_kernels() -> None:
    first, second, other = (kernel_ir_of(rms_norm(64, n)) for n in (1024, 1024, 2048))
    # Tensors are values of their fusion: what a kernel does is its body.
    assert first.body == second.body != other.body


def test_lines_are_beside_kernels_and_not_in_them() -> None:
    def kernel(lines: int) -> Kernel:
        text = "\n" * lines + "fd.add_output(fd.ops.sum(fd.define_tensor([8, 64]), [1]))"
        with FusionDefinition() as fd:
            exec(compile(text, f"/checkout{lines}/model.py", "exec"), {"fd": fd})
        (found,) = generate_kernels(CompiledFusion(fd.fusion).plan(), H200).values()
        return found.kernel

    first, second = kernel(0), kernel(6)
    assert first == second
    assert "model.py" not in first.source
    assert "// reduction 0: sum (model.py:1)" in first.listing
    assert "// reduction 0: sum (model.py:7)" in second.listing
