"""Steps and details of a plan: what a fusion of a trace, or a definition, adds to a program."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

from thunder_fuser import passes
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.config import current
from thunder_fuser.inspect.program import Kind, Part, Program, Role, Step, Tensor
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.observers import Stage, observing, text_of
from thunder_fuser.segment.placement import Buffer
from thunder_fuser.segment.plan import Segment, SegmentedFusion

Named = Callable[[TensorView], str]
Sections = Iterator[tuple[str, str]]

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
    """A step for each segment, numbered from 0. `named` gives the names of tensors, `told` puts
    them into sentences.
    """
    several = len(plan.segments) > 1
    reasons = {b.producer: told(str(b)) for b in plan.boundaries}
    for segment in plan.segments:
        estimate = segment.estimate
        apart = tuple(told(f"apart: {r}") for r in segment.refusals)
        kept = (reasons[segment.index],) if segment.index in reasons else ()
        yield Step(
            number=segment.index,
            part=part,
            kind=_KINDS[segment.kind],
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
    """Boundaries that are gone after a segment."""
    ends = plan.placement.of(Buffer).items()
    return tuple(named(t) for t, buffer in ends if buffer.last == index)


def lines_of(fusion: Fusion) -> tuple[str, ...]:
    """The user's lines of a fusion, those of most operations first."""
    counts = Counter(f"{e.origin.file}:{e.origin.line}" for e in fusion.exprs if e.origin.file)
    return tuple(line for line, _ in counts.most_common())


def program_of_plan(plan: SegmentedFusion, name: str) -> Program:
    """A definition, or a plan of one, as a program of one part."""

    def named(t: TensorView) -> str:
        return t.name

    steps = tuple(steps_of_plan(plan, named, str, name, 0))
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
        aliases={t.name: _owner(plan, t) for t in _inside(plan)},
    )


def _inside(plan: SegmentedFusion) -> list[TensorView]:
    """Tensors that lie in other tensors' memory."""
    every = dict.fromkeys(t for s in plan.segments for t in s.outputs)
    return [t for t in every if plan.placement.root(t) is not t]


def _owner(plan: SegmentedFusion, tensor: TensorView) -> str:
    return plan.placement.root(tensor).name


def sections_of(
    fusion: Fusion, plan: SegmentedFusion, listing: str, kernels: tuple[Kernel, ...], repro: str
) -> Sections:
    """What can be read about a fusion: the road from its definition to its kernels. `listing` is
    the plan as it is told; `kernels` are those that run, if any do.
    """
    yield "plan", listing
    yield from _stages(fusion, plan, bool(kernels))
    for kernel in kernels:
        yield f"source of {kernel.name}", kernel.listing
    yield "repro", repro


def _stages(fusion: Fusion, plan: SegmentedFusion, has_source: bool) -> Sections:
    """The values of the stages: the fusion, what each pass changed, schedules, kernel IR."""
    found: list[tuple[str, str]] = []
    last = [text_of(fusion)]

    def passed(name: str, left: Fusion, changed: bool) -> None:
        if changed:
            text = text_of(left)
            lines = difflib.unified_diff(last[0].splitlines(), text.splitlines(), "", "", "", "", 1)
            found.append((f"after {name} (diff)", "\n".join([*lines][2:])))
            last[0] = text

    def seen(stage: Stage, value: object) -> None:
        if stage.name in ("schedule", "kernel ir") or (stage.name == "kernel" and not has_source):
            what = "source" if stage.name == "kernel" else stage.name
            text = value.listing if isinstance(value, Kernel) else text_of(value)
            found.append((f"{what}, {stage.detail}", text))

    yield "fusion", last[0]
    if fusion.is_static:
        passes.run(fusion, precision=current().precision, watch=passed)
    if plan.device is not None and plan.sizes is None:
        with observing(seen):
            generate_kernels(plan, plan.device)
    yield from found
