"""Report data of a plan: steps and details of a trace's fusion or of a definition."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.inspect.collect.details import Budget, detail_of
from thunder_fuser.inspect.data.program import Kind, Part, Program, Role, Step, Tensor
from thunder_fuser.inspect.data.refusals import refused
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.observers import text_of
from thunder_fuser.segment.communication_overlap import collective_of
from thunder_fuser.segment.placement import Buffer
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.segment.repro import script

Named = Callable[[TensorView], str]

_KINDS: dict[str, Kind] = {
    "pointwise": "pointwise",
    "reduction": "reduction",
    "scan": "scan",
    "opaque": "torch",
    "alias": "view",
    "concat": "concat",
}


def steps_of_plan(
    plan: SegmentedFusion, named: Named, told: Callable[[str], str], fusion: str, part: int
) -> Iterator[Step]:
    """Yield a step for each segment, numbered from 0. `named` gives the name of a tensor, `told`
    replaces tensor names in a message.
    """
    several = len(plan.segments) > 1
    reasons = {b.producer: told(str(b)) for b in plan.boundaries}
    for segment in plan.segments:
        estimate = segment.estimate
        apart = tuple(told(f"apart: {r}") for r in segment.refusals)
        kept = (reasons[segment.index],) if segment.index in reasons else ()
        collective = collective_of(segment)
        if collective is not None:
            kept = (told(collective.origin.symbol), *kept)
        yield Step(
            number=segment.index,
            part=part,
            kind="communication" if collective is not None else _KINDS[segment.kind],
            name=f"{fusion}.{segment.index}" if several else fusion,
            fusion=fusion,
            operations=segment.operations,
            reads=tuple(map(named, segment.inputs)),
            writes=tuple(map(named, segment.outputs)),
            bytes_read=int(segment.bytes_read),
            bytes_written=int(segment.bytes_written),
            key=_key(segment),
            kernels=segment.kernels,
            flops=int(segment.flops),
            seconds=estimate.seconds if estimate else 0.0,
            copy_seconds=estimate.copy_seconds if estimate else 0.0,
            bound=estimate.bound if estimate else "",
            frees=_frees(plan, segment.index, named),
            lines=lines_of(segment.fusion),
            reasons=(*apart, *kept),
        )


def _key(segment: Segment) -> str:
    text = f"{segment.kind} {segment.layouts} {text_of(segment.fusion)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _frees(plan: SegmentedFusion, index: int, named: Named) -> tuple[str, ...]:
    """Names of the boundary tensors whose last use is segment `index`."""
    ends = plan.placement.of(Buffer).items()
    return tuple(named(t) for t, buffer in ends if buffer.last == index)


def lines_of(fusion: Fusion) -> tuple[str, ...]:
    """Source lines of a fusion as "file:line", those with most operations first."""
    counts = Counter(f"{e.origin.file}:{e.origin.line}" for e in fusion.exprs if e.origin.file)
    return tuple(line for line, _ in counts.most_common())


def program_of_definition(definition: FusionDefinition, name: str, details: bool) -> Program:
    """Program of a definition: the plan of its last call, or else of the definition alone."""
    ran = definition.compiled.latest
    plan = ran.plan if ran else definition.plan()
    fusion = definition.compiled.fusion
    return _program(plan, fusion, name, ran.kernels if ran else (), details)


def program_of_plan(plan: SegmentedFusion, name: str, details: bool) -> Program:
    """Program of a plan alone, whose fusion has already been through the passes."""
    return _program(plan, plan.fusion, name, (), details)


def _program(
    plan: SegmentedFusion, fusion: Fusion, name: str, ran: tuple[Kernel, ...], details: bool
) -> Program:
    """Program of one part, with one detail for all of its steps."""

    def named(t: TensorView) -> str:
        return t.name

    steps = tuple(steps_of_plan(plan, named, str, name, 0))
    found = []
    if details:
        repro = script(plan.fusion, f"{name}.", "cpu") if plan.fusion.is_static else ""
        listing = plan.listing(times=True)
        found = [detail_of(name, fusion, plan, listing, ran, repro, Budget())]
        steps = tuple(replace(s, detail=0) for s in steps)
    told = [r for segment in plan.segments for r in segment.refusals]
    roles: dict[str, Role] = {
        **{t.name: "result" for t in plan.fusion.outputs},
        **{t.name: "argument" for t in plan.fusion.tensor_inputs},
    }
    tensors = {
        t.name: Tensor(
            t.name, tuple(map(int, t.sizes)), t.dtype.name, int(t.bytes), roles.get(t.name, "inner")
        )
        for s in plan.segments
        for t in (*s.inputs, *s.outputs)
    }
    return Program(
        name,
        (Part(name, 0, len(steps), int(plan.bytes_ideal)),),
        steps,
        tensors,
        plan.device.name if plan.device else "",
        apart=refused(told),
        details=tuple(found),
        aliases={t.name: _owner(plan, t) for t in _inside(plan)},
    )


def _inside(plan: SegmentedFusion) -> list[TensorView]:
    """Segment outputs that are aliases of other tensors."""
    every = dict.fromkeys(t for s in plan.segments for t in s.outputs)
    return [t for t in every if plan.placement.root(t) is not t]


def _owner(plan: SegmentedFusion, tensor: TensorView) -> str:
    return plan.placement.root(tensor).name
