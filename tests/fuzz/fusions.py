"""Random fusions of every generator, planned for devices of many kinds, against float64.

Results are compared with the oracle, and share memory only where they are views of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from tests.fuzz.kernels import Device, TolerantBatch, compiled_together, devices
from tests.support.batch import executable
from tests.support.cuts import with_cuts
from tests.support.generator import Case, random_case
from tests.support.generator_cats import cat_case
from tests.support.generator_shifts import shift_case
from tests.support.sequential_c_tables import Unprintable
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.passes.rewrite import memory_behind_results
from thunder_fuser.runtime.executable import Executable

_CPU = torch.device("cpu")
LONG = (1, 2, 3, 8, 33, 64, 127, 128, 129, 255, 256, 257, 512, 1000, 1024, 1025, 2049, 4096, 4099)
"""Sizes on both sides of vectors, warps, blocks and rows that registers hold."""

_MAKERS: tuple[Callable[[int], Case], ...] = (
    lambda seed: random_case(seed, max_numel=400, calls=seed % 16 == 8),
    lambda seed: random_case(seed, max_numel=400, reductions=True, counters=seed % 16 == 1),
    lambda seed: random_case(seed, max_numel=400, gathers=True, reductions=seed % 3 == 0),
    lambda seed: random_case(seed, max_numel=400, special=True, reductions=seed % 2 == 0),
    lambda seed: shift_case(seed) if seed % 16 == 4 else cat_case(seed),
    lambda seed: random_case(
        seed,
        max_numel=10_000,
        sizes=LONG,
        reductions=seed % 4 > 0,
        gathers=seed % 4 == 3,
        scans=seed % 16 == 13,
    ),
    lambda seed: random_case(seed, max_numel=400, draws=True, reductions=seed % 2 == 0),
    lambda seed: random_case(
        seed,
        max_numel=400,
        steps=25,
        reductions=True,
        scans=seed % 16 == 15,
        groups=seed % 16 == 7,
    ),
)


def fusion_case(seed: int) -> Case:
    """The fusion of a seed: its remainder by eight says from which generator."""
    return _MAKERS[seed % len(_MAKERS)](seed)


@dataclass(frozen=True, slots=True)
class FusionVerdict:
    """What became of one case; `message` says what is wrong."""

    seed: int
    device: str
    outcome: str
    message: str = ""


def judge_fusions(
    seeds: Sequence[int], device: int, *, optimised: bool = False
) -> list[FusionVerdict]:
    """One verdict for each seed, planned for the device of that number."""
    chosen = devices()[device % len(devices())]
    return judged(seeds, fusion_case, lambda _: chosen, optimised=optimised)


def judged(
    seeds: Sequence[int],
    made_of: Callable[[int], Case],
    device_of: Callable[[int], Device],
    *,
    optimised: bool = False,
    batch: type[TolerantBatch] = TolerantBatch,
    seen: Callable[[int, Executable], None] | None = None,
) -> list[FusionVerdict]:
    """One verdict for each seed, whose case is planned for its device; `seen` gets what runs."""
    planned = []
    verdicts = []
    with compiled_together(device_of(seeds[0]), optimised=optimised, batch=batch) as rehearsal:
        for seed in seeds:
            case = made_of(seed)
            fusion = with_cuts(case.fusion, seed) if seed % 4 == 3 else case.fusion
            inputs = case.fresh_inputs()
            device = device_of(seed)
            rehearsal.plan_for(device)
            try:
                made = executable(CompiledFusion(fusion), inputs, rehearsal.batch, _CPU)
                planned.append((case, inputs, made, device.name))
                if seen is not None:
                    seen(seed, made)
            except Exception as error:
                told = _told(case, error)
                verdicts.append(FusionVerdict(seed, device.name, "exception", told))
        for case, inputs, made, name in planned:
            try:
                outputs = made(inputs)
                case.check(outputs, case.updated(inputs))
                problem = memory_shared_by_mistake(made.plan.fusion, outputs)
            except Unprintable:
                verdicts.append(FusionVerdict(case.seed, name, "unprintable"))
            except AssertionError as error:
                verdicts.append(FusionVerdict(case.seed, name, "values", str(error)))
            except Exception as error:
                verdicts.append(FusionVerdict(case.seed, name, "exception", _told(case, error)))
            else:
                outcome = "memory" if problem else "right"
                verdicts.append(FusionVerdict(case.seed, name, outcome, problem))
    return sorted(verdicts, key=lambda v: v.seed)


def _told(case: Case, error: Exception) -> str:
    return f"{type(error).__name__}: {error}\n{case.fusion}"


def memory_shared_by_mistake(fusion: Fusion, outputs: Sequence[torch.Tensor]) -> str:
    """Which results share memory although they are no views of one tensor, or ""."""
    behind = memory_behind_results(fusion)
    views = fusion.outputs
    filled = [k for k, x in enumerate(outputs) if x.numel()]
    return "".join(
        f"results {a} and {b} share memory\n{fusion}"
        for a, b in combinations(filled, 2)
        if _storage(outputs[a]) == _storage(outputs[b]) and behind[views[a]] != behind[views[b]]
    )


def _storage(t: torch.Tensor) -> int:
    return int(t.untyped_storage().data_ptr())
