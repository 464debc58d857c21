"""Random definitions with the schedules of random GPUs, run without one, against float64.

What a schedule does depends on what there is little of: multiprocessors for its rows, registers and
shared memory for what it keeps, caches for what it reads again. A GPU is a function of the seed, so
that programs of a few thousand elements are scheduled in every way that large ones are on real
devices. Kernels run twice: as the text that a GPU gets, for the host, whose threads meet in
barriers; and as plain C (tests/support/sequential_c.py), with none of the headers that both targets
share. NVRTC compiles them for the GPU.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.fuzz.fusions import LONG, FusionVerdict, fusion_case, judged
from tests.fuzz.kernels import Device
from tests.fuzz.plain_c import PlainCBatch
from tests.support.generator import Case, random_case
from tests.support.generator_program import SIZES
from tests.support.generator_rows import rows_case
from tests.support.sequential_c_tables import CTYPES
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A10, A100, B200, H200, T4
from thunder_fuser.errors import CompileError, TargetError
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.executable import Executable

_KIB = 1024
_LITTLE = 0.75
"""How often a GPU has less of everything than any that can be bought."""


def gpu(seed: int) -> DeviceInfo:
    """A GPU: one that exists, or as one would be with little of this and of that."""
    rng = random.Random(f"gpu {seed}")
    like = rng.choice((H200, H200, H200, B200, A100, A10, T4))
    if rng.random() > _LITTLE:
        return like
    # Rows of a few thousand elements have no room in one multiprocessor of these.
    is_crowded = rng.random() < 0.3
    shared = rng.choice((16, 24) if is_crowded else (4, 8, 16, 24, 48, 96)) * _KIB
    shared = min(shared, like.shared_bytes_per_block)
    multiprocessors = 8 if is_crowded else rng.choice((1, 2, 3, 4, 8, 8, 8, 16, 132))
    clusters = tuple((n, multiprocessors // n) for n in (2, 4, 8) if n <= multiprocessors)
    few_threads = not is_crowded and rng.random() < 0.3
    return replace(
        like,
        name=f"{like.arch} {seed}",
        sm_count=multiprocessors,
        clusters=clusters if like.clusters and rng.random() < 0.7 else (),
        shared_bytes_per_block=shared,
        shared_bytes_per_sm=shared + rng.choice((1, 8)) * _KIB,
        registers_per_sm=32 * _KIB if is_crowded else rng.choice((16, 32, 64)) * _KIB,
        max_threads_per_block=256 if few_threads else like.max_threads_per_block,
        threads_per_sm=512 if few_threads else like.threads_per_sm,
        l2_bytes=rng.choice((64, 4 * _KIB, 64 * _KIB, like.l2_bytes)),
        bandwidth=like.bandwidth * rng.choice((0.01, 1, 1)),
        bytes_in_flight_per_sm=rng.choice((_KIB, like.bytes_in_flight_per_sm)),
        launch_seconds=rng.choice((0.0, like.launch_seconds, 1e-4)),
        grid_barrier_seconds=rng.choice((0.0, like.grid_barrier_seconds)),
        load_seconds=rng.choice((0.0, like.load_seconds)),
    )


def gpu_of(seed: int) -> Device:
    """The same to plan and to schedule for."""
    info = gpu(seed)
    return Device(info.name, info, info)


def gpu_case(seed: int) -> Case:
    """Rows for two seeds of three, else any fusion, half of them of numbers that C has."""
    if seed % 3 < 2:
        return rows_case(seed)
    if seed % 2:
        return replace(fusion_case(seed // 6), seed=seed)
    return random_case(
        seed,
        max_numel=4000,
        dtypes=tuple(CTYPES),
        sizes=SIZES if seed % 5 < 2 else LONG,
        reductions=True,
        groups=seed % 5 < 2,
        gathers=seed % 7 == 3,
        scans=seed % 5 == 4,
    )


def judge_on_gpus(
    seeds: Sequence[int], device: int = 0, *, optimised: bool = False
) -> list[FusionVerdict]:
    """One verdict for each seed, which has a GPU of its own."""
    made: dict[int, Sequence[Kernel]] = {}
    # What is known of a case, its error bounds, takes longer than its kernels.
    case_of = functools.cache(gpu_case)

    def seen(seed: int, executable: Executable) -> None:
        made[seed] = executable.kernels

    in_cuda = judged(seeds, case_of, gpu_of, optimised=optimised, seen=seen)
    in_c = judged(seeds, case_of, gpu_of, batch=PlainCBatch)
    rejected = rejections(made)
    return [_all_of(a, b, rejected.get(a.seed, "")) for a, b in zip(in_cuda, in_c, strict=True)]


def rejections(kernels: Mapping[int, Sequence[Kernel]]) -> dict[int, str]:
    """What NVRTC says of the kernels of a seed that it does not take; nothing where it is not
    installed.
    """
    by_arch: dict[str, list[int]] = {}
    for seed, found in kernels.items():
        if found:
            by_arch.setdefault(gpu(seed).arch, []).append(seed)
    said: dict[int, str] = {}
    for arch, seeds in by_arch.items():
        for group in (seeds, *([seed] for seed in seeds)):
            together = {k.name: k for seed in group for k in kernels[seed]}
            try:
                compile_cubin(list(together.values()), arch)
            except TargetError:
                return {}
            except CompileError as error:
                if len(group) == 1:
                    said[group[0]] = str(error)
            else:
                if len(group) == len(seeds):
                    break
    return said


def _all_of(in_cuda: FusionVerdict, in_c: FusionVerdict, rejected: str) -> FusionVerdict:
    """What is wrong in any of them; not every kernel has words in C."""
    if in_cuda.outcome != "right":
        return in_cuda
    if rejected:
        return replace(in_cuda, outcome="exception of NVRTC", message=rejected)
    if in_c.outcome == "unprintable":
        return replace(in_c, outcome="right as CUDA C++ alone")
    return in_c if in_c.outcome == "right" else replace(in_c, outcome=f"{in_c.outcome} in plain C")
