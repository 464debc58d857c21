"""Process replay: the plans and kernels of a corpus as one file, and what two such files differ in.

A refactoring ends with a recording from before and one from after:

    python -m tests.tools.replay record before.json.gz     # at the old commit
    python -m tests.tools.replay record after.json.gz      # at the new one
    python -m tests.tools.replay compare before.json.gz after.json.gz

The corpus: every workload (full and small size), every program and definition whose plan is under
test, random fusions, random fusions with reductions. Kernels are generated for the host and for the
data sheets of the GPUs; `--resources` also compiles those for GPUs with NVRTC and records
registers, spills and static shared memory. No GPU is needed.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.support.generator import random_case
from tests.support.plans import DEFINITIONS, planned
from tests.zoo.plan_programs import PROGRAMS
from tests.zoo.workloads import WORKLOADS
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATACENTER
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.target import target_for
from thunder_fuser.segment.plan import SegmentedFusion

RANDOM = 500
"""Random fusions, and as many with reductions."""
BATCH = 40
"""Kernels of one NVRTC program: a compiler takes about as long to start as to compile ten."""

Plans = Callable[[], Sequence[SegmentedFusion]]


# ---- what is recorded


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel of one plan for one device; `text` is a key of `Recording.texts`."""

    device: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cooperative: bool


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One plan of the corpus: the program that was planned, the plan as users see it, its kernels.

    bytes, kernels, boundaries  figures of the plan; bytes at the sizes that it was made for
    """

    program: str
    plan: str
    bytes: int
    kernels: int
    boundaries: int
    generated: tuple[KernelRecord, ...]


@dataclass(slots=True)
class Recording:
    """Plans by name, kernel texts by digest, and resources by device and digest."""

    plans: dict[str, PlanRecord] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    resources: dict[str, dict[str, int]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        content = json.dumps(asdict(self), indent=0)
        # No time of day in the header: the same plans give the same bytes.
        path.write_bytes(gzip.compress(content.encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Recording:
        content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        plans = {name: _plan_record(found) for name, found in content["plans"].items()}
        return cls(plans, content["texts"], content["resources"])


def _plan_record(fields: dict[str, Any]) -> PlanRecord:
    kernels = tuple(
        KernelRecord(**{**k, "grid": tuple(k["grid"]), "block": tuple(k["block"])})
        for k in fields["generated"]
    )
    return PlanRecord(**{**fields, "generated": kernels})


# ---- the corpus


def corpus(random: int = RANDOM) -> Iterator[tuple[str, Plans]]:
    """Names, and functions that plan."""
    for workload in WORKLOADS:
        for size in (workload.full, workload.small):
            yield f"workload/{workload.name}/{size}", _later(workload.fusion, size)
    for program in PROGRAMS:
        yield f"program/{program.name}", lambda name=program.name: planned(name).plans  # type: ignore[misc]
    for definition in DEFINITIONS:
        yield f"definition/{definition.name}", lambda d=definition: (d.plan(),)  # type: ignore[misc]
    for reductions in (False, True):
        kind = "reductions" if reductions else "fusions"
        for seed in range(random):
            yield f"{kind}/{seed}", _random(seed, reductions)


def _later(make: Callable[[int], Any], size: int) -> Plans:
    return lambda: (CompiledFusion(make(size)).plan(),)


def _random(seed: int, reductions: bool) -> Plans:
    def plans() -> Sequence[SegmentedFusion]:
        case = random_case(seed, reductions=reductions)
        return (CompiledFusion(case.fusion).plan(case.inputs),)

    return plans


def devices() -> tuple[DeviceInfo, ...]:
    """The host, with a fixed number of cores, and a GPU of each generation."""
    host = torch.device("cpu")
    return (target_for(host).device_info(host), *DATACENTER)


def record(programs: Iterable[tuple[str, Plans]], resources: bool) -> Recording:
    """Plan and generate every program for every device."""
    made = Recording()
    kernels: dict[str, dict[str, Kernel]] = {info.arch: {} for info in DATACENTER}
    for name, plans in programs:
        for k, plan in enumerate(plans()):
            generated = []
            for info in devices():
                for entry in generate_kernels(plan, info).values():
                    kernel = entry.kernel
                    digest = hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
                    made.texts[digest] = kernel.source
                    kernels.get(info.arch, {})[digest] = kernel
                    generated.append(_kernel_record(info, digest, kernel))
            figures = int(plan.bytes), plan.kernels, len(plan.boundaries)
            made.plans[f"{name}#{k}"] = PlanRecord(
                str(plan.fusion), str(plan), *figures, tuple(generated)
            )
    if resources:
        for arch, texts in kernels.items():
            made.resources[arch] = _resources(texts, arch)
    return made


def _kernel_record(info: DeviceInfo, digest: str, kernel: Kernel) -> KernelRecord:
    device = info.arch if info.kind == "cuda" else info.kind
    launch = kernel.grid, kernel.block, kernel.shared_bytes, kernel.cooperative
    return KernelRecord(device, digest, *launch)


def _resources(kernels: Mapping[str, Kernel], arch: str) -> dict[str, int]:
    """Registers, spilled bytes and static shared memory, each kernel compiled once."""
    found = {}
    for batch in _batches(kernels):
        cubin = compile_cubin([kernel for _, kernel in batch], arch)
        for digest, kernel in batch:
            for what, value in asdict(cubin.resources[kernel.name]).items():
                found[f"{digest} {what}"] = int(value)
    return found


def _batches(kernels: Mapping[str, Kernel]) -> Iterator[list[tuple[str, Kernel]]]:
    """Kernels that may stand in one program: no two of one name."""
    batch: dict[str, tuple[str, Kernel]] = {}
    for digest, kernel in kernels.items():
        if kernel.name in batch or len(batch) == BATCH:
            yield list(batch.values())
            batch = {}
        batch[kernel.name] = (digest, kernel)
    if batch:
        yield list(batch.values())


# ---- comparison

_COMMENT = re.compile(r"[ \t]*//[^\n]*")
_LOCAL = re.compile(r"\b(?!b?f16\b|f32\b)(?:tf_\w+|[A-Za-z]{1,2}\d+)\b")


def normalized(text: str) -> str:
    """Kernel text without comments and layout, and with its numbered names in order of appearance.

    `tf_reduction_sum_12ab` and `t17` are names; what a text declares under them is not. Layout is
    where lines are indented and broken, and braces around one statement.
    """
    names: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        return names.setdefault(match.group(), f"n{len(names)}")

    lines: list[str] = []
    found = _LOCAL.sub(renamed, _COMMENT.sub("", text)).replace("} else", "}\nelse")
    for line in (part.strip() for each in found.splitlines() for part in _statements(each)):
        if line:
            lines.append(line)
        while lines[-3:] and lines[-1] == "}" and _is_braced_statement(*lines[-3:-1]):
            lines[-3:] = [f"{lines[-3].removesuffix(' {')} {lines[-2]}"]
    return "\n".join(lines)


def _statements(line: str) -> list[str]:
    return [line] if "for (" in line else line.replace("; ", ";\n").splitlines()


def _is_braced_statement(head: str, statement: str) -> bool:
    """Whether a head, one statement and a closing brace say no more than the statement alone."""
    return head.startswith(("if (", "for (", "else")) and head[-1] == "{" and statement[-1] == ";"


@dataclass(slots=True)
class Differences:
    """What changed between two recordings, as lines for a reader."""

    plans: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.plans or self.launches or self.texts or self.resources)


def compare(before: Recording, after: Recording) -> Differences:
    """Every plan whose figures changed, every kernel whose launch, text or resources did."""
    out = Differences()
    for name in sorted(before.plans.keys() ^ after.plans.keys()):
        out.plans.append(f"{name}: only {'before' if name in before.plans else 'after'}")
    shared = [name for name in before.plans if name in after.plans]
    out.counts["plans"] = len(shared)
    seen: set[tuple[str, str]] = set()
    for name in shared:
        old, new = before.plans[name], after.plans[name]
        _compare_plans(name, old, new, out)
        for device in sorted({k.device for k in (*old.generated, *new.generated)}):
            a = [k for k in old.generated if k.device == device]
            b = [k for k in new.generated if k.device == device]
            for x, y in zip(a, b, strict=False):
                out.counts["kernels"] += 1
                _compare_kernels(f"{name} on {device}", (before, x), (after, y), out, seen)
    return out


def _compare_plans(name: str, old: PlanRecord, new: PlanRecord, out: Differences) -> None:
    figures = ("bytes", "kernels", "boundaries")
    changed = [
        f"{what} {getattr(old, what):,} -> {getattr(new, what):,}"
        for what in figures
        if getattr(old, what) != getattr(new, what)
    ]
    if old.program != new.program and changed:
        changed.append("of another program")
    if changed:
        out.plans.append(f"{name}: {', '.join(changed)}")
    elif old.plan != new.plan:
        out.counts["plans that print otherwise, with the same figures"] += 1


def _compare_kernels(
    where: str,
    old: tuple[Recording, KernelRecord],
    new: tuple[Recording, KernelRecord],
    out: Differences,
    seen: set[tuple[str, str]],
) -> None:
    x, y = old[1], new[1]
    for what in ("grid", "block", "shared_bytes", "cooperative"):
        if getattr(x, what) != getattr(y, what):
            out.launches.append(f"{where}: {what} {getattr(x, what)} -> {getattr(y, what)}")
    if x.text == y.text or (x.text, y.text) in seen:
        return
    seen.add((x.text, y.text))
    a, b = (normalized(r.texts[k.text]).splitlines() for r, k in (old, new))
    if a != b:
        out.texts.append(where)
        out.diffs.append("\n".join(difflib.unified_diff(a, b, where, where, lineterm="", n=2)))
    old_costs, new_costs = (_costs(r, k) for r, k in (old, new))
    for what in sorted(old_costs.keys() & new_costs.keys()):
        if old_costs[what] != new_costs[what]:
            out.resources.append(f"{where}: {what} {old_costs[what]} -> {new_costs[what]}")


def _costs(recording: Recording, kernel: KernelRecord) -> dict[str, int]:
    found = recording.resources.get(kernel.device, {})
    start = f"{kernel.text} "
    return {key.removeprefix(start): n for key, n in found.items() if key.startswith(start)}


def report(found: Differences, show: int, diffs: int) -> str:
    """Counts, the first `show` lines of each kind, the first `diffs` differences of texts."""
    lines = [f"{count:,} {what}" for what, count in sorted(found.counts.items())]
    kinds = {
        "plans with other figures": found.plans,
        "kernels with another launch": found.launches,
        "kernels with another text (names and comments apart)": found.texts,
        "kernels with other resources": found.resources,
    }
    for title, entries in kinds.items():
        lines.append(f"{len(entries):,} {title}")
        lines += [f"  {entry}" for entry in entries[:show]]
        if len(entries) > show:
            lines.append(f"  ... and {len(entries) - show:,} more (--show)")
    lines += found.diffs[:diffs]
    return "\n".join(lines)


# ---- command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if `compare` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.replay", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="plan and generate the corpus")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--random", type=int, default=RANDOM, help="random programs of each kind")
    recorder.add_argument("--only", default="", help="programs whose names contain this")
    recorder.add_argument("--resources", action="store_true", help="registers and spills (NVRTC)")
    comparer = commands.add_parser("compare", help="what changed between two recordings")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    comparer.add_argument("--show", type=int, default=20, help="lines of each kind")
    comparer.add_argument("--diffs", type=int, default=0, help="differences of texts to print")
    asked = parser.parse_args(arguments)
    if asked.command == "record":
        programs = (entry for entry in corpus(asked.random) if asked.only in entry[0])
        made = record(programs, asked.resources)
        made.save(asked.file)
        print(f"{len(made.plans):,} plans, {len(made.texts):,} kernel texts: {asked.file}")
        return 0
    found = compare(Recording.load(asked.before), Recording.load(asked.after))
    print(report(found, asked.show, asked.diffs))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
