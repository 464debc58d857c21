"""Plans of whole programs at full size, from shapes alone: launches and bytes, worked out by hand.

Each figure says what must be read and written at least: every input element that is needed once,
every output element once.
"""

from __future__ import annotations

import pytest

from tests.zoo.workloads import BY_NAME, PARAMETERS, WORKLOADS, Workload
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.segment.plan import SegmentedFusion

MLP = 8192 * 14336 * 2
WIDE = 8192 * 16384 * 2
BIAS = 16384 * 2
HIDDEN = 16384 * 8192 * 2
# qkv of 24 heads of 32; 8 of 32 elements turn. All of q, k and v is needed.
ISSUE_2577 = 2 * 1024 * 768 * 2 + 2 * (1024 * 8 * 2) + 3 * (2 * 16 * 1024 * 32 * 2)
# Queries and keys of 8 groups of 6 heads of 128 are read, values are not.
TABLES = 2 * (8192 * 128 * 2)
LLAMA = 8192 * 8 * 5 * 128 * 2 + TABLES + 2 * (32 * 8192 * 128 * 2)
LLAMA_BACKWARD = 2 * (32 * 8192 * 128 * 2) + TABLES + 8192 * 6144 * 2

BYTES = {
    "swiglu": 3 * MLP,
    "swiglu_backward": 5 * MLP,
    "bias_gelu_erf": 2 * WIDE + BIAS,
    "bias_gelu_tanh": 2 * WIDE + BIAS,
    "bias_gelu_erf_backward": 3 * WIDE + BIAS,
    "bias_gelu_tanh_backward": 3 * WIDE + BIAS,
    "residual": 6 * HIDDEN,
    "residual_backward": 7 * HIDDEN,
    # Parameters and gradients in bfloat16, moments in float32; all but gradients are written.
    "adamw": PARAMETERS * (2 + 2 + 4 + 4) + PARAMETERS * (2 + 4 + 4),
    "rope_2577": ISSUE_2577,
    "rope_llama": LLAMA,
    "rope_llama_backward": LLAMA_BACKWARD,
    "sin_cos": 3 * (8192 * 4096 * 4),
    "heads_first": 2 * (8192 * 64 * 128 * 2) + 128 * 2,
    "token_shift": 2 * (4 * 8192 * 4096 * 2) + 4096 * 2,
    "transpose_add_bf16": 3 * (16384 * 16384 * 2),
    "transpose_add_float": 3 * (16384 * 16384 * 4),
    "transpose_cube_bf16": 3 * (512**3 * 2),
    "transpose_cube_float": 3 * (512**3 * 4),
    "cat_relu": 4 * (8192 * 8192 * 2),
    "channels_last": 2 * (8 * 64 * 112 * 112 * 2) + 2 * (64 * 4),
}


def planned(workload: Workload) -> SegmentedFusion:
    return CompiledFusion(workload.fusion(workload.full)).plan()


@pytest.mark.parametrize("name", BYTES)
def test_a_connected_region_is_one_kernel_at_ideal_bytes(name: str) -> None:
    plan = planned(BY_NAME[name])
    assert (plan.kernels, plan.bytes) == (1, BYTES[name])
    assert plan.bytes_ideal == plan.bytes
    assert plan.boundaries == ()
    (segment,) = (s for s in plan.segments if s.kind != "concat")
    assert (segment.kind, segment.refusals) == ("pointwise", ())
    assert segment.bytes_read + segment.bytes_written == plan.bytes


def test_figures_that_are_known_from_elsewhere() -> None:
    """As published for these programs, in bytes."""
    known = {
        "rope_2577": 9_469_952,
        "rope_llama_backward": 239_075_328,
        "adamw": 4_798_464_000,
        "swiglu": 704_643_072,
    }
    assert PARAMETERS == 218_112_000
    assert {name: BYTES[name] for name in known} == known


def test_every_workload_is_planned_here() -> None:
    cut = {"relu_slices", "constant_across_a_cut"}
    assert {w.name for w in WORKLOADS} == BYTES.keys() | cut


def test_one_kernel_updates_all_parameters_in_place() -> None:
    plan = planned(BY_NAME["adamw"])
    assert len(plan.fusion.updates) == 27
    assert {u.value: u.target for u in plan.fusion.updates} == plan.placement.updates
    assert plan.copies == 0
    assert plan.peak_bytes == 0


def test_outputs_are_all_that_a_plan_allocates() -> None:
    plan = planned(BY_NAME["rope_2577"])
    assert plan.peak_bytes == 3 * (2 * 16 * 1024 * 32 * 2)


def test_slices_between_two_kernels_launch_nothing() -> None:
    plan = planned(BY_NAME["relu_slices"])
    whole, part = 1024 * 64 * 4, 1024 * 8 * 4
    assert [(s.kind, s.operations[-1], s.bytes) for s in plan.segments] == [
        ("pointwise", "relu", 2 * whole),
        ("pointwise", "relu", 2 * part),
    ]
    assert (plan.kernels, plan.bytes_ideal) == (2, 2 * part)
    (boundary,) = plan.boundaries
    assert (boundary.producer, boundary.consumers, boundary.bytes) == (0, (1,), whole)
    assert plan.peak_bytes == whole + part


class Uncut(FusionBuilder):
    """Definitions without their cuts."""

    def segment_set(self, x: TensorView) -> TensorView:
        return x


def test_a_constant_goes_through_no_memory() -> None:
    workload = BY_NAME["constant_across_a_cut"]
    plan = planned(workload)
    assert (plan.kernels, plan.bytes) == (2, 16_384)
    assert [len(s.inputs) for s in plan.segments] == [1, 1]
    joined = CompiledFusion(workload.fusion(workload.full, Uncut())).plan()
    assert (joined.kernels, joined.bytes) == (1, 8192)
