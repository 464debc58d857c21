"""Program: what a report is about, as plain data. Steps in execution order, the tensors between
them, and what is in memory meanwhile.

A step is a kernel, a call of torch, or what costs nothing. Nothing here knows Thunder or a plan;
`of_thunder.py` and `of_plan.py` make programs of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from thunder_fuser.inspect.refused import Refused

Kind = Literal["pointwise", "reduction", "scan", "torch", "communication", "view", "concat"]
Role = Literal["argument", "result", "saved", "inner"]

FREE: frozenset[Kind] = frozenset({"view", "concat"})
"""Steps that launch nothing: their results lie in memory that exists."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the program, under its trace's name.

    role  "argument": the caller's; "result": returned; "saved": the forward keeps it for its
          backward; "inner": gone before the part ends
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

    part        which part of the program it belongs to: 0 is the forward, 1 its backward
    name        as a table has it: "fuser3", "fuser3.1" where a fusion has several kernels, "linear"
    fusion      of the trace that it is a part of; "" for a call of torch
    reads       names of the tensors that it reads from memory, writes those that it leaves there
    recomputes  names of tensors that another step computes, too
    frees       names of tensors that are gone after it
    transient   bytes that it holds while it runs, beside tensors that have names
    seconds     that it is expected to take; 0 where nobody knows
    copy_seconds  that a copy of its bytes takes
    lines       of the user's program that it computes, most of it first
    reasons     why it is not one with its neighbours, with prices where there are some
    key         equal for steps that do the same to tensors of other names
    detail      position among the program's details; None for what has none
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
        """Bytes of memory traffic."""
        return self.bytes_read + self.bytes_written

    @property
    def is_ours(self) -> bool:
        """Whether a generated kernel does it."""
        return self.kernels > 0

    @property
    def title(self) -> str:
        """What it is, in a few words: kind and operations."""
        if not self.is_ours:
            return ", ".join(self.operations)
        names = list(dict.fromkeys(self.operations))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return f"{self.kind}: {shown or 'copy'}"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a generated kernel takes of a device.

    segment        of its fusion that it is
    registers      of a thread, shared_bytes of a block, static and dynamic
    spilled_bytes  stored and loaded by a thread for want of registers
    resident       blocks that a multiprocessor holds at a time, by NVIDIA's rules of occupancy
    occupancy      their threads, of as many as it could hold
    measured       the compiler that counted registers and shared memory; "" for estimates
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
    """Everything that can be read about a fusion: texts by title, in the order of the road.

    names     of the fusions of the program that are equal to it
    sections  title and text; a text whose title ends in "(diff)" has lines of + and -
    kernels   those of its segments that are no other's equal
    """

    names: tuple[str, ...]
    sections: tuple[tuple[str, str], ...]
    kernels: tuple[KernelFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that run in one call: a forward, its backward, or a definition.

    bytes_ideal  of all fusions: inputs and results of each once
    stages       titles and texts as details have them: its trace after each of Thunder's passes
    """

    title: str
    first: int
    stop: int
    bytes_ideal: int = 0
    stages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """Bytes in memory while a step runs, beside the caller's arguments.

    saved  of these, what the forward keeps for its backward
    """

    step: int
    bytes: int
    saved: int


@dataclass(frozen=True, slots=True)
class Program:
    """What a report shows.

    device    that seconds are expected on; "" where nobody knows
    refusals  what is left to torch: each sentence once, with how often and where
    apart     why kernels of one fusion are several, in the same way
    aliases   tensors that lie in another one's memory, and that one
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
        """Calls of torch that run something."""
        return sum(s.kind == "torch" for s in self.steps)

    @property
    def collectives(self) -> int:
        """Calls that move bytes between devices."""
        return sum(s.kind == "communication" and s.bytes > 0 for s in self.steps)

    @property
    def bytes(self) -> int:
        """Traffic of the generated kernels."""
        return sum(s.bytes for s in self.steps if s.is_ours)

    @property
    def bytes_ideal(self) -> int:
        """The same if only inputs and results of fusions touched memory, each once."""
        return sum(p.bytes_ideal for p in self.parts)

    @property
    def torch_bytes(self) -> int:
        """Traffic of torch's calls: operands and results once."""
        return sum(s.bytes for s in self.steps if s.kind == "torch")

    @property
    def seconds(self) -> float:
        """Expected time of all steps that have one, one after the other."""
        return sum(s.seconds for s in self.steps)

    @property
    def copy_seconds(self) -> float:
        """What copies take that move the bytes of the generated kernels."""
        return sum(s.copy_seconds for s in self.steps if s.is_ours)

    @property
    def saved_bytes(self) -> int:
        """Memory that the forward keeps for its backward, beside arguments and results: a view
        keeps all of what it lies in.
        """
        return sum(self.tensors[name].bytes for name in self.saved)

    @property
    def saved(self) -> frozenset[str]:
        """The tensors whose memory that is."""
        kept = {self.owner(t.name) for t in self.tensors.values() if t.role == "saved"}
        return frozenset(n for n in kept if self.tensors[n].role in ("saved", "inner"))

    def of(self, part: Part) -> Sequence[Step]:
        """The steps of a part."""
        return self.steps[part.first : part.stop]

    def segments(self) -> list[dict[int, Step]]:
        """Of each detail the steps of its first fusion, by their segments."""
        found: list[dict[int, Step]] = [{} for _ in self.details]
        for step in self.steps:
            if step.detail is not None and step.fusion == self.details[step.detail].names[0]:
                end = step.name.removeprefix(step.fusion).removeprefix(".")
                found[step.detail].setdefault(int(end or 0), step)
        return found

    def owner(self, name: str) -> str:
        """The tensor in whose memory one lies."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def levels(self) -> Iterator[Level]:
        """Memory, step by step."""
        saved = self.saved
        for step, alive in self._alive():
            kept = sum(size for name, size in alive.items() if name in saved)
            yield Level(step.number, sum(alive.values()) + step.transient, kept)

    def peak(self) -> Level:
        """The step with most bytes in memory."""
        return max(self.levels(), key=lambda level: level.bytes, default=Level(0, 0, 0))

    def alive_at(self, number: int) -> dict[str, int]:
        """Tensors in memory while a step runs, with their bytes, largest first."""
        for step, alive in self._alive():
            if step.number == number:
                found = sorted(alive.items(), key=lambda item: (-item[1], item[0]))
                return dict(found)
        return {}

    def _alive(self) -> Iterator[tuple[Step, dict[str, int]]]:
        """Each step and what is in memory while it runs. Views keep alive what they lie in."""
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
    """Several programs of one run as one, their names told apart by prefixes: forwards in order,
    then backwards from last to first, as autograd runs them.
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
    """The same under other names of tensors, steps and parts."""

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
