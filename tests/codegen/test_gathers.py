"""Kernels with indexed reads: text, machine code by NVRTC, and cross-entropy, which has one."""

from __future__ import annotations

import re

import pytest
import torch

from tests.codegen.kernels import kernel_of
from tests.support.batch import Batch, executable
from tests.support.generator import random_case
from tests.support.hash_seeds import printed_under_any
from tests.support.shares import each_value
from tests.tools import sass
from tests.zoo import losses
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.errors import FuserIndexError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.segment.planner import partition

Float, BFloat16, Int = DataType.Float, DataType.BFloat16, DataType.Int
needs_disassembler = pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
FULL = (4096, 128256)


def embedding(rows: int, vocabulary: int, columns: int) -> FusionBuilder:
    b = FusionBuilder()
    w, i = b.tensor([vocabulary, columns], BFloat16), b.tensor([rows], Int)
    b.output(b.gather("embedding_fwd", w, 0, i))
    return b


# ---- text


def test_an_index_is_checked_once_for_each_vector_before_the_row_is_read() -> None:
    text = kernel_of(embedding(8192, 128256, 4096)).source
    assert text.count("tf::checked_position(") == 1
    assert re.search(r"const int t\d+ = tf::checked_position\(x0\[k\], 128256, true, ", text)
    assert re.search(r"tf::load<8>\(T0 \+ 4096 \* t\d+ \+ 8 \* \w+, x1\[k\]\)", text)


def test_indices_are_int_as_long_as_every_address_is() -> None:
    # The last row of the larger table starts beyond 2**31.
    for vocabulary, ctype in ((2**19, "int"), (2**19 + 1, "long long")):
        text = kernel_of(embedding(64, vocabulary, 4096)).source
        assert f"const {ctype} u = " in text
        assert re.search(rf"const {ctype} t\d+ = tf::checked_position\(", text)


def test_loads_that_wait_for_no_index_are_issued_before_any_that_does() -> None:
    b = FusionBuilder()
    x, w = b.tensor([2**16, 256], Float), b.tensor([100, 256], Float)
    i = b.tensor([2**16], Int)
    b.output(b.apply("add", (x, b.gather("embedding_fwd", w, 0, i)), Float))
    text = kernel_of(b).source
    assert text.count("for (int k = 0; k < ") == 3
    places = [text.index(f"tf::load<4>({t.name} + ") for t in (x, w)]
    assert places[0] < text.index("tf::checked_position(") < places[1]


def test_a_row_of_a_row_kernel_is_held_and_its_index_read_once() -> None:
    with FusionDefinition() as fd:
        w, i = fd.define_tensor([1000, 4096], True), fd.define_tensor([64], True, Int)
        rows = fd.ops.embedding_fwd(i, w)
        mean = fd.ops.div(fd.ops.sum(rows, [1], keepdim=True), 4096.0)
        fd.add_output(fd.ops.sub(rows, mean))
    (generated,) = generate_kernels(fd.plan(), H200).values()
    text = generated.kernel.source
    assert text.count("tf::load<") == 1
    assert text.count("tf::checked_position(") == 1
    assert text.index("tf::checked_position(") < text.index("tf::load<")


def test_text_does_not_depend_on_hashes() -> None:
    text = "from tests.codegen.test_reduction_kernel import kernels_of\n"
    text += "from tests.support.generator import random_case\n"
    text += (
        "for k in range(6):\n    f = random_case(k, gathers=True, reductions=k % 2 == 0).fusion\n"
    )
    text += "    print(*(k.source for k in kernels_of(f)))"
    assert printed_under_any(text).count("tf::checked_position(") > 6


# ---- cross-entropy


@each_value(schedule=["own", "H200"], dtype=[Float, BFloat16])
def test_cross_entropy_is_no_worse_than_in_eager(
    device: torch.device, schedule: str, dtype: DataType
) -> None:
    """Against float64 on the rounded logits."""
    if schedule == "H200" and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    batch = Batch(device, H200 if schedule == "H200" else None)
    planned = []
    for classes in (1, 2, 33, 1000, 4096, 50257):
        logits, target = losses.inputs(37, classes, dtype.torch)
        exact, rough = (losses.eager(x, target) for x in (logits.double(), logits))
        scale = 1.0 / (target != losses.IGNORED).sum()
        saved = [logits, target, exact[1].float(), scale]
        for definition, inputs, expected in (
            (losses.cross_entropy(37, classes, dtype, mean=True), saved[:2], (0, 1, 2)),
            (losses.cross_entropy_backward(37, classes, dtype), saved, (3,)),
        ):
            moved = [t.to(device) for t in inputs]
            run = executable(CompiledFusion(definition.fusion), moved, batch, device)
            planned.append((run, moved, [(exact[k], rough[k]) for k in expected]))
    for run, moved, expected in planned:
        for found, (truth, theirs) in zip(run(moved), expected, strict=True):
            ours = found.cpu().double()
            floor = 2 * torch.finfo(found.dtype).eps * (1 + truth.abs().max())
            limit = torch.maximum((theirs.double() - truth).abs().max(), floor)
            assert (ours - truth).abs().max() <= limit


@pytest.mark.parametrize("info", [None, H200], ids=["own", "H200"])
def test_a_class_that_does_not_exist_ends_the_program_whatever_threads_wait_for(
    info: DeviceInfo | None,
) -> None:
    """On a GPU's schedule the host suspends threads at the barriers of a row."""
    cpu = torch.device("cpu")
    logits, target = losses.inputs(37, 1000, torch.float32)
    fusion = losses.cross_entropy(37, 1000, Float).fusion
    run = executable(CompiledFusion(fusion), [logits, target], Batch(cpu, info), cpu)
    expected = run([logits, target])
    for wrong in (1000, -1):
        broken = target.clone()
        broken[17] = wrong
        with pytest.raises(FuserIndexError, match=f"take_along_axis.* index {wrong} is out of"):
            run([logits, broken])
        assert all(map(torch.equal, run([logits, target]), expected))


def full_size() -> list[FusionDefinition]:
    return [
        losses.cross_entropy(*FULL, BFloat16),
        losses.cross_entropy_backward(*FULL, BFloat16),
        losses.cross_entropy(*FULL, BFloat16, mean=True),
    ]


def test_cross_entropy_of_full_size_moves_what_it_must() -> None:
    rows, classes = FULL
    logits = 2 * rows * classes
    forward, backward, mean = (definition.plan() for definition in full_size())
    # Targets, and the loss and logsumexp of each row: the logit of the target counts nothing more.
    assert forward.kernels == 1
    assert [s.kind for s in forward.segments] == ["reduction"]
    assert forward.bytes == forward.bytes_ideal == logits + rows * (8 + 4 + 4)
    assert backward.kernels == 1
    assert backward.bytes == backward.bytes_ideal == 2 * logits + rows * (8 + 4) + 4
    assert mean.bytes <= 1.005 * mean.bytes_ideal


def taken_apart(rows: int, classes: int) -> FusionDefinition:
    """The loss of each row as Thunder takes it apart: a padded class stands for ignored targets."""
    with FusionDefinition() as fd:
        o = fd.ops
        logits = fd.define_tensor([rows, classes], True, BFloat16)
        target = fd.define_tensor([rows], True, Int)
        wide = o.cast(logits, Float)
        shifted = o.sub(wide, o.max(wide, [1], keepdim=True))
        total = o.log(o.sum(o.exp(shifted), [1], keepdim=True))
        negated = o.neg(o.cast(o.sub(shifted, total), BFloat16))
        column = o.broadcast(target, [False, True])
        column = o.where(o.ne(column, losses.IGNORED), column, classes)
        fd.add_output(o.squeeze(o.take_along_axis(o.pad(negated, [0, 1], 0.0), column, 1), [1]))
    return fd


def test_the_pad_of_a_loss_is_a_comparison_and_its_logarithms_are_not_written() -> None:
    plan = taken_apart(*FULL).plan()
    (generated,) = generate_kernels(plan, H200).values()
    rows, classes = FULL
    assert plan.bytes == plan.bytes_ideal == rows * (2 * classes + 8 + 4)
    assert re.search(r"if \(t\d+ <= 128255\) x\d = T0\[", generated.kernel.source)
    logits, target = losses.inputs(37, 100, torch.bfloat16)
    (found,) = taken_apart(37, 100).execute([logits, target])
    expected = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)
    assert not found[target == losses.IGNORED].any()


def full_kernels() -> list[Kernel]:
    plans = [definition.plan() for definition in full_size()]
    return [k.kernel for plan in plans[:2] for k in generate_kernels(plan, H200).values()]


def test_each_row_reads_the_logit_of_its_target_once() -> None:
    forward, backward = full_kernels()
    assert re.search(r"x\d = T0\[128256 \* r \+ t\d+\];", forward.source)
    assert forward.source.count("tf::checked_position(") == 1
    assert "tf::checked_position(" not in backward.source
    assert backward.source.count("tf::load<8>(T0") == 1


# ---- NVRTC


@pytest.mark.nvrtc
@needs_disassembler
def test_an_embedding_moves_128_bits_at_once_and_divides_nothing() -> None:
    b = embedding(8192, 128256, 4096)
    assert partition(b.build()).bytes == 2 * 8192 * 4096 * 2 + 8192 * 8
    kernel = kernel_of(b)
    cubin = compile_cubin([kernel], "sm_90")
    (resources,) = cubin.resources.values()
    assert not resources.spills
    assert resources.stack_bytes == 0
    (code,) = sass.disassemble(cubin.image).values()
    # Rows, and the 64-bit index of each.
    assert code.load_bits == {128: 4, 64: 4}
    assert code.store_bits == {128: 4}
    # Checks in between do not wait for rows: all of them are in flight before one is stored.
    last = max(k for k, name in enumerate(code.opcodes) if name.startswith("LDG"))
    first = min(k for k, name in enumerate(code.opcodes) if name.startswith("STG"))
    assert last < first
    assert code.integer_divisions == 0
    assert code.local_accesses == 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
def test_gathers_compile_without_spills(device: DeviceInfo) -> None:
    kernels = [kernel_of(embedding(64, 1000, 100), device=device), *full_kernels()]
    b = FusionBuilder()
    x, i = b.tensor([512, 1000], Float), b.tensor([512, 1000], DataType.Int32)
    padded = b.pad(b.apply("exp", (x,), Float), [3, 1])
    b.output(b.gather("gather", padded, 1, i))
    kernels.append(kernel_of(b, device=device))
    for name, resources in compile_cubin(kernels, device.arch).resources.items():
        assert not resources.spills, name


@pytest.mark.nvrtc
def test_random_gathers_compile() -> None:
    kernels: dict[str, Kernel] = {}
    for seed in range(24):
        plan = CompiledFusion(
            random_case(seed, gathers=True, reductions=seed % 2 == 0).fusion
        ).plan()
        for generated in generate_kernels(plan, H200).values():
            kernels[generated.kernel.name] = generated.kernel
    assert sum("tf::checked_position(" in kernel.source for kernel in kernels.values()) > 12
    cubin = compile_cubin(list(kernels.values()), H200.arch)
    assert set(cubin.resources) == set(kernels)
