"""python -m tests.fuzz: a campaign of random programs.

    python -m tests.fuzz --kind torch --seed 0 --count 1000

Kinds: torch, functions through thunder.jit against eager torch; functions, such of calls of
torch.nn.functional; library, such of the rest of torch; calls, such with products, attention,
convolutions, writes and sorts of torch between, and budgets, whose memory is counted; fusion,
fusions of the op tables against float64; definition, calls of `fd` with open sizes, each against
its meaning in torch, called several times, against float64; sizes, definitions of open and computed
sizes against torch; states, functions that keep lists, dictionaries, attributes and tensors from
call to call, which their caller changes between two calls, against eager torch; gpu, fusions with
the schedules of GPUs that have little of this or of that, as CUDA C++ for the host and as plain C,
against float64; norms, functions of norms, softmaxes and losses with such schedules, against eager
torch; folds, reductions, scans and norms with all their arguments on edges of values and sizes,
also where torch refuses them. All run under the option `strict`, so that no fallback to torch
passes unseen. Each difference is printed with the smallest program that shows it; the last line has
the figures. A program is a function of its seed: `--seed N --count 1` finds it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import thunder_fuser
from tests.fuzz.definitions.judge import judge_definitions
from tests.fuzz.folds import device_of_folds, missing_errors, program_of_folds
from tests.fuzz.fusions import FusionVerdict, judge_fusions
from tests.fuzz.generate import (
    program_of_functions,
    program_of_library,
    program_of_norms,
    program_with_calls,
    random_program,
)
from tests.fuzz.gpus import gpu_of, judge_on_gpus
from tests.fuzz.judge import Verdict, judge
from tests.fuzz.kernels import Device
from tests.fuzz.open_sizes import judge_sizes
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrunk
from tests.fuzz.states.generate import stateful_program
from tests.fuzz.states.judge import judge_states


class Judge(Protocol):
    def __call__(
        self, seeds: Sequence[int], device: int, *, optimised: bool
    ) -> list[FusionVerdict]: ...


_HARMLESS = ("right", "refused", "unstable", "wrong in Thunder")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--kind", choices=(*_KINDS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200, help="programs of each kind")
    parser.add_argument("--batch", type=int, default=50, help="programs compiled together")
    parser.add_argument("--shrink", type=int, default=3, help="programs cut for each kind of fault")
    parser.add_argument("--optimised", action="store_true", help="compile as for a user")
    given = parser.parse_args()
    kinds = tuple(_KINDS) if given.kind == "all" else (given.kind,)
    failed = False
    with tempfile.TemporaryDirectory() as folder, thunder_fuser.options(cache_dir=folder):
        for kind in kinds:
            start, counts = time.process_time(), Counter[str]()
            for outcome in _KINDS[kind](given):
                counts[outcome] += 1
            seconds = time.process_time() - start
            print(
                f"{kind}, seeds {given.seed} to {given.seed + given.count - 1}: "
                f"{dict(sorted(counts.items()))}, {seconds:.0f} s besides the compiler"
            )
            failed |= any(not outcome.startswith(_HARMLESS) for outcome in counts)
    return failed


def _batches(given: argparse.Namespace) -> Iterator[Sequence[int]]:
    end = given.seed + given.count
    for first in range(given.seed, end, given.batch):
        yield range(first, min(first + given.batch, end))


def _torch(
    given: argparse.Namespace,
    made: Callable[[int], Program],
    memory: bool,
    device_of: Callable[[int], Device] | None = None,
) -> Iterator[str]:
    shown = Counter[tuple[str, ...]]()
    for seeds in _batches(given):
        device = device_of or seeds[0] // given.batch
        programs = list(map(made, seeds))
        for verdict in judge(programs, device, optimised=given.optimised, memory=memory):
            if verdict.outcome == "wrong":
                shown[verdict.signature] += 1
                is_new = shown[verdict.signature] <= given.shrink
                _report(
                    shrunk(verdict, partial(judge, device=device, memory=memory))
                    if is_new
                    else verdict
                )
            yield verdict.outcome


def _folds(given: argparse.Namespace) -> Iterator[str]:
    yield from _torch(given, program_of_folds, False, device_of_folds)
    for seed in range(given.seed, given.seed + given.count):
        for program in missing_errors(seed):
            print(f"==== seed {seed}: torch refuses this call\n{program.script()}", flush=True)
            yield "missing error"


def _states(given: argparse.Namespace) -> Iterator[str]:
    programs = map(stateful_program, range(given.seed, given.seed + given.count))
    for verdict in judge_states(programs, shrink=bool(given.shrink)):
        if not verdict.outcome.startswith(_HARMLESS):
            print(f"==== seed {verdict.program.seed}: {verdict.outcome}\n{verdict.message}")
            print(verdict.program.script(), flush=True)
        yield verdict.outcome


def _report(verdict: Verdict) -> None:
    print(f"==== seed {verdict.program.seed}, layout {verdict.layout}: {verdict.signature}")
    for difference in verdict.found:
        print("   ", str(difference)[:600])
    print(verdict.program.script(range(verdict.layout + 1)), flush=True)


def _definitions(judged: Judge, given: argparse.Namespace) -> Iterator[str]:
    for seeds in _batches(given):
        device = seeds[0] // given.batch
        for verdict in judged(seeds, device, optimised=given.optimised):
            if verdict.message:
                print(f"==== seed {verdict.seed} for {verdict.device}: {verdict.outcome}")
                print(verdict.message, flush=True)
            yield verdict.outcome


_KINDS: Mapping[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "torch": partial(_torch, made=random_program, memory=False),
    "functions": partial(_torch, made=program_of_functions, memory=False),
    "calls": partial(_torch, made=program_with_calls, memory=True),
    "fusion": partial(_definitions, judge_fusions),
    "definition": partial(_definitions, judge_definitions),
    "sizes": partial(_definitions, judge_sizes),
    "states": _states,
    "gpu": partial(_definitions, judge_on_gpus),
    "folds": _folds,
    "library": partial(_torch, made=program_of_library, memory=False),
    "norms": partial(_torch, made=program_of_norms, memory=False, device_of=gpu_of),
}


if __name__ == "__main__":
    sys.exit(main())
