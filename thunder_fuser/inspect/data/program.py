"""Program: the plain data of a report. Steps in execution order, the tensors between them, and the
memory held during each step.

A step is a kernel, a torch call, or something free, such as a view. This module depends on neither
Thunder nor plans; `of_thunder.py` and `of_plan.py` convert these to programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from thunder_fuser.inspect.data.refusals import Refused

Kind = Literal["pointwise", "reduction", "scan", "torch", "communication", "view", "concat"]
Role = Literal["argument", "result", "saved", "inner"]

FREE: frozenset[Kind] = frozenset({"view", "concat"})
"""Kinds of steps that launch nothing: their results lie in existing memory."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the program, under its name in the trace.

    role  "argument": owned by the caller; "result": returned; "saved": saved for backward;
          "inner": freed before the part ends
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    role: Role = "inner"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a program.

    number        position in `Program.steps`
    part          index in `Program.parts`: 0 is the forward, 1 its backward
    name          display name: "linear", "fuser3", or "fuser3.1" if a fusion has several segments
    fusion        name of its fusion in the trace; "" for a torch call
    operations    names of its operations
    reads         names of the tensors that it reads from memory
    writes        names of the tensors that it writes to memory
    key           equal for steps that differ only in names of tensors
    kernels       launches of generated kernels
    seconds       estimated time; 0 if unknown
    copy_seconds  estimated time of a copy that moves as many bytes
    bound         limiting resource by the estimate: "memory", "launch", "latency", ...
    recomputes    names of tensors that another step computes, too
    frees         names of tensors whose memory is freed after it
    transient     bytes that it holds while it runs, besides named tensors
    lines         source lines of the user's program that it computes, most operations first
    reasons       why it is not merged with its neighbours, with costs where known
    detail        index in `Program.details`; None if there is none
    """

    number: int
    part: int
    kind: Kind
    name: str
    fusion: str
    operations: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    key: str
    kernels: int = 0
    flops: int = 0
    seconds: float = 0.0
    copy_seconds: float = 0.0
    bound: str = ""
    recomputes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    transient: int = 0
    lines: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    detail: int | None = None

    @property
    def bytes(self) -> int:
        """Memory traffic in bytes."""
        return self.bytes_read + self.bytes_written

    @property
    def is_ours(self) -> bool:
        """True if a generated kernel computes it."""
        return self.kernels > 0

    @property
    def title(self) -> str:
        """Short description: kind and operations."""
        if not self.is_ours:
            return ", ".join(self.operations)
        names = list(dict.fromkeys(self.operations))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return f"{self.kind}: {shown or 'copy'}"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Launch geometry and resources of a generated kernel.

    segment        index of its segment in the fusion
    blocks         blocks of the grid
    threads        threads per block
    registers      per thread
    spilled_bytes  spill stores and loads per thread
    shared_bytes   per block, static and dynamic
    resident       resident blocks per multiprocessor, by NVIDIA's occupancy rules
    occupancy      resident threads as a fraction of the multiprocessor's maximum
    measured       compiler that reported registers and shared memory; "" for estimates
    """

    name: str
    segment: int
    device: str
    blocks: int
    threads: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    resident: int
    occupancy: float
    measured: str


@dataclass(frozen=True, slots=True)
class Detail:
    """Texts and kernels of a fusion, shared by equal fusions.

    names     names of the equal fusions of the program
    sections  (title, text) in the order of compilation; a title ending in "(diff)" marks a text of
              lines with + and -
    kernels   one for each distinct segment
    """

    names: tuple[str, ...]
    sections: tuple[tuple[str, str], ...]
    kernels: tuple[KernelFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive steps that run in one call: a forward, its backward, or a definition.

    first, stop  range in `Program.steps`
    bytes_ideal  sum over all fusions of the bytes of their inputs and results, each counted once
    stages       (title, text) of its trace after each Thunder pass, as in `Detail.sections`
    """

    title: str
    first: int
    stop: int
    bytes_ideal: int = 0
    stages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """Memory held while a step runs, without the caller's arguments.

    step   number of the step
    bytes  total
    saved  share of `bytes` that is saved for backward
    """

    step: int
    bytes: int
    saved: int


@dataclass(frozen=True, slots=True)
class Program:
    """Data of a report.

    device    device that estimated times are for; "" if unknown
    refusals  reasons why operations are left to torch, grouped by message
    apart     reasons why fusions have several kernels, grouped by message
    aliases   for each tensor that lies in another one's memory, the name of that one
    """

    name: str
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    tensors: Mapping[str, Tensor]
    device: str = ""
    refusals: tuple[Refused, ...] = ()
    apart: tuple[Refused, ...] = ()
    details: tuple[Detail, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> int:
        """Launches of generated kernels."""
        return sum(s.kernels for s in self.steps)

    @property
    def calls(self) -> int:
        """Torch calls, without views and collectives."""
        return sum(s.kind == "torch" for s in self.steps)

    @property
    def collectives(self) -> int:
        """Collectives that move bytes between devices."""
        return sum(s.kind == "communication" and s.bytes > 0 for s in self.steps)

    @property
    def bytes(self) -> int:
        """Memory traffic of the generated kernels."""
        return sum(s.bytes for s in self.steps if s.is_ours)

    @property
    def bytes_ideal(self) -> int:
        """Memory traffic of the fusions if each input and result moved once and nothing else."""
        return sum(p.bytes_ideal for p in self.parts)

    @property
    def torch_bytes(self) -> int:
        """Memory traffic of torch calls, if operands and results move once."""
        return sum(s.bytes for s in self.steps if s.kind == "torch")

    @property
    def seconds(self) -> float:
        """Sum of the estimated times of all steps that have one."""
        return sum(s.seconds for s in self.steps)

    @property
    def copy_seconds(self) -> float:
        """Estimated time of copies that move the bytes of the generated kernels."""
        return sum(s.copy_seconds for s in self.steps if s.is_ours)

    @property
    def saved_bytes(self) -> int:
        """Memory saved for backward, without arguments and results; a saved view keeps the whole
        tensor that it lies in.
        """
        return sum(self.tensors[name].bytes for name in self.saved)

    @property
    def saved(self) -> frozenset[str]:
        """Names of the tensors counted by `saved_bytes`."""
        kept = {self.owner(t.name) for t in self.tensors.values() if t.role == "saved"}
        return frozenset(n for n in kept if self.tensors[n].role in ("saved", "inner"))

    def of(self, part: Part) -> Sequence[Step]:
        """Steps of a part."""
        return self.steps[part.first : part.stop]

    def segments(self) -> list[dict[int, Step]]:
        """For each detail, the steps of its first fusion by segment index."""
        found: list[dict[int, Step]] = [{} for _ in self.details]
        for step in self.steps:
            if step.detail is not None and step.fusion == self.details[step.detail].names[0]:
                end = step.name.removeprefix(step.fusion).removeprefix(".")
                found[step.detail].setdefault(int(end or 0), step)
        return found

    def owner(self, name: str) -> str:
        """Name of the tensor whose memory `name` lies in; itself if it is no alias."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def levels(self) -> Iterator[Level]:
        """Memory held during each step."""
        saved = self.saved
        for step, alive in self._alive():
            kept = sum(size for name, size in alive.items() if name in saved)
            yield Level(step.number, sum(alive.values()) + step.transient, kept)

    def peak(self) -> Level:
        """Level of the step with most bytes in memory."""
        return max(self.levels(), key=lambda level: level.bytes, default=Level(0, 0, 0))

    def alive_at(self, number: int) -> dict[str, int]:
        """Tensors in memory while step `number` runs, with their bytes, largest first."""
        for step, alive in self._alive():
            if step.number == number:
                found = sorted(alive.items(), key=lambda item: (-item[1], item[0]))
                return dict(found)
        return {}

    def _alive(self) -> Iterator[tuple[Step, dict[str, int]]]:
        """Each step with the bytes of the tensors alive during it. Views keep their owner alive."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        alive: dict[str, int] = {}
        for step in self.steps:
            for name in step.writes:
                owner = self.owner(name)
                if owner in self.tensors and self.tensors[owner].role != "argument":
                    names[owner].add(name)
                    alive[owner] = self.tensors[owner].bytes
            yield step, dict(alive)
            for name in step.frees:
                owner = self.owner(name)
                names[owner].discard(name)
                if not names[owner]:
                    alive.pop(owner, None)


def beside(programs: Sequence[tuple[str, Program]], name: str) -> Program:
    """Join several (prefix, program) pairs of one run: forwards in order, then backwards from last
    to first, as autograd runs them. Prefixes keep names distinct.
    """
    named = [_prefixed(program, prefix) for prefix, program in programs]
    order = [(p, part) for p in named for part in p.parts if "backward" not in part.title]
    order += [(p, part) for p in reversed(named) for part in p.parts if "backward" in part.title]
    first = {id(p): sum(len(q.details) for q in named[:k]) for k, p in enumerate(named)}
    steps: list[Step] = []
    parts: list[Part] = []
    for number, (program, part) in enumerate(order):
        begin = len(steps)
        for step in program.of(part):
            detail = None if step.detail is None else step.detail + first[id(program)]
            steps.append(replace(step, number=len(steps), part=number, detail=detail))
        parts.append(replace(part, first=begin, stop=len(steps)))
    return Program(
        name,
        tuple(parts),
        tuple(steps),
        {n: t for p in named for n, t in p.tensors.items()},
        next((p.device for p in named if p.device), ""),
        tuple(r for p in named for r in p.refusals),
        tuple(r for p in named for r in p.apart),
        tuple(d for p in named for d in p.details),
        {n: t for p in named for n, t in p.aliases.items()},
    )


def _prefixed(program: Program, prefix: str) -> Program:
    """Return `program` with `prefix` before the names of tensors, fusions and parts."""

    def new(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{prefix}{n}" for n in names)

    return replace(
        program,
        parts=tuple(replace(p, title=f"{prefix}{p.title}") for p in program.parts),
        steps=tuple(
            replace(
                s,
                name=f"{prefix}{s.name}" if s.fusion else s.name,
                fusion=f"{prefix}{s.fusion}" if s.fusion else "",
                reads=new(s.reads),
                writes=new(s.writes),
                recomputes=new(s.recomputes),
                frees=new(s.frees),
            )
            for s in program.steps
        ),
        tensors={
            f"{prefix}{n}": replace(t, name=f"{prefix}{t.name}") for n, t in program.tensors.items()
        },
        details=tuple(replace(d, names=new(d.names)) for d in program.details),
        aliases={f"{prefix}{n}": f"{prefix}{t}" for n, t in program.aliases.items()},
    )
