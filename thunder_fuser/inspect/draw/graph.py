"""Graph of a program as SVG: one column per part, steps from top to bottom; a backward runs from
bottom to top next to its forward, so that edges of saved tensors are about horizontal.

Equal layers are one frame with a count. An edge is one or more tensors in memory between two steps;
edges to the next step are straight, others are routed at the outer side of the column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from thunder_fuser.inspect.data.folding import Fold, folded
from thunder_fuser.inspect.data.program import FREE, Program, Step
from thunder_fuser.inspect.units import bytes_text, seconds_text

_WIDTH = 300
_HEIGHT = 40
_SMALL = 18
_GAP = 22
_LANE = 14
_MARGIN = 120
_BETWEEN = 190
_TOP = 40
_CHARACTERS = 44
"""Most characters of a line of text in a box."""


@dataclass(frozen=True, slots=True)
class _Box:
    """Box of a step, or of consecutive steps that move nothing; it stands for `count` layers."""

    steps: tuple[Step, ...]
    count: int
    column: int
    x: float
    y: float
    height: float

    @property
    def step(self) -> Step:
        return self.steps[0]

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class _Edge:
    """Tensors that one box writes and another reads, with bytes by name, of all equal layers."""

    names: dict[str, int] = field(default_factory=dict)
    saved: bool = False
    next_layer: bool = False
    recomputed: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.names.values())

    def label(self, source: _Box, target: _Box) -> str:
        """Bytes per layer; "" for recomputation."""
        times = min(source.count, target.count)
        return "" if self.recomputed else bytes_text(self.bytes / times)

    def told(self, source: _Box, target: _Box) -> str:
        names = list(self.names)
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        if self.recomputed:
            return f"computed in {source.step.name}, and again in {target.step.name}: {shown}"
        how = (
            "saved for backward, "
            if self.saved
            else "to the next layer, "
            if self.next_layer
            else ""
        )
        return f"{shown}: {how}{bytes_text(self.bytes)}, {source.step.name} to {target.step.name}"


def graph(program: Program) -> str:
    """Return the graph as an SVG element. The page's tables have its data for screen readers."""
    columns = [folded(program.of(part)) for part in program.parts]
    boxes: dict[int, _Box] = {}
    frames: list[str] = []
    height = max((_height(folds, _GAP) for folds in columns), default=0)
    for column, (part, folds) in enumerate(zip(program.parts, columns, strict=True)):
        x = _MARGIN + column * (_WIDTH + _BETWEEN)
        frames.append(f'<text class="part" x="{x}" y="{_TOP - 16}">{escape(part.title)}</text>')
        # All columns get the height of the highest: edges of saved tensors are about horizontal.
        gap = _GAP + (height - _height(folds, _GAP)) / max(_height(folds, 1) - _height(folds, 0), 1)
        frames += _place(folds, column, x, gap, height, "backward" in part.title, boxes)
    height += _TOP
    edges = _edges(program, boxes)
    shown = {id(box): box for box in boxes.values()}.values()
    width = 2 * _MARGIN + len(columns) * _WIDTH + max(len(columns) - 1, 0) * _BETWEEN
    drawn = [*frames, *_drawn(edges, boxes, len(columns)), *map(_box, shown)]
    return (
        f'<svg class="graph" viewBox="0 0 {width} {height + 10:.0f}" width="{width}" '
        f'height="{height + 10:.0f}" role="img" aria-label="graph of {escape(program.name)}">'
        f"{_MARKERS}{''.join(drawn)}</svg>"
    )


_MARKERS = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
    '<marker id="tip-saved" class="saved" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
)


def _grouped(fold: Fold) -> Iterator[tuple[list[Step], list[Step]]]:
    """Yield the steps of each box, and all steps it stands for; consecutive steps that move nothing
    share a box.
    """
    for free, group in groupby(
        zip(fold.steps, fold.repeats, strict=True), lambda pair: pair[0].kind in FREE
    ):
        pairs = list(group)
        for together in [pairs] if free else [[pair] for pair in pairs]:
            yield [s for s, _ in together], [equal for _, repeats in together for equal in repeats]


def _tall(step: Step) -> float:
    return _SMALL if step.kind in FREE else _HEIGHT


def _height(folds: Sequence[Fold], gap: float) -> float:
    """Height of a column with `gap` between its boxes, and one `gap` above and below each frame."""
    boxes = sum(_tall(steps[0]) + gap for fold in folds for steps, _ in _grouped(fold))
    return boxes + sum(2 * gap for fold in folds if fold.count > 1)


def _place(
    folds: Sequence[Fold],
    column: int,
    x: float,
    gap: float,
    height: float,
    upwards: bool,
    boxes: dict[int, _Box],
) -> Iterator[str]:
    """Place the boxes of a column, into `boxes` by step number; yield the frames of layers."""
    at = 0.0

    def turned(y: float, tall: float) -> float:
        return _TOP + (height - y - tall if upwards else y)

    for fold in folds:
        begin = at
        at += gap if fold.count > 1 else 0
        for steps, equal in _grouped(fold):
            tall = _tall(steps[0])
            box = _Box(tuple(steps), fold.count, column, x, turned(at, tall), tall)
            boxes |= {step.number: box for step in equal}
            at += tall + gap
        if fold.count > 1:
            tall = at - begin
            y = turned(begin, tall)
            yield (
                f'<rect class="layer" x="{x - 12}" y="{y:.0f}" width="{_WIDTH + 24}" '
                f'height="{tall:.0f}" rx="8"/><text class="count" x="{x + _WIDTH + 6}" '
                f'y="{y + 15:.0f}" text-anchor="end">{fold.count} times</text>'
            )
            at += gap


def _edges(program: Program, boxes: Mapping[int, _Box]) -> dict[tuple[int, int], _Edge]:
    """Return edges by step numbers: those of the first step of the writing and the reading box."""
    found: dict[tuple[int, int], _Edge] = {}
    writer: dict[str, Step] = {}
    computed: dict[str, Step] = {}
    for step in program.steps:
        target = boxes[step.number]
        for name in step.reads:
            source = writer.get(name)
            if source is None or boxes[source.number] is target:
                continue
            box = boxes[source.number]
            edge = found.setdefault((box.step.number, target.step.number), _Edge())
            edge.names.setdefault(
                name, program.tensors[name].bytes if name in program.tensors else 0
            )
            edge.saved |= box.column != target.column
            edge.next_layer |= box.column == target.column and box.step.number > target.step.number
        for name in step.recomputes if step.is_ours else ():
            first = computed.setdefault(name, step)
            if boxes[first.number] is not target:
                key = boxes[first.number].step.number, target.step.number
                if key not in found or found[key].recomputed:
                    again = found.setdefault(key, _Edge(recomputed=True))
                    again.names.setdefault(name, 0)
        writer |= dict.fromkeys(step.writes, step)
    return found


def _drawn(
    edges: Mapping[tuple[int, int], _Edge], boxes: Mapping[int, _Box], columns: int
) -> Iterator[str]:
    """Yield all edges; those that are routed around overlap no other in their lane."""
    taken: list[list[tuple[int, float, float]]] = [[] for _ in range(max(columns, 1))]
    sums = _saved(edges)
    ordered = sorted(edges.items(), key=lambda item: abs(item[0][0] - item[0][1]))
    for (source_number, target_number), edge in ordered:
        source, target = boxes[source_number], boxes[target_number]
        kind = (
            "recomputed"
            if edge.recomputed
            else "saved"
            if edge.saved
            else "next"
            if edge.next_layer
            else "inner"
        )
        title = f"<title>{escape(edge.told(source, target))}</title>"
        kind = f'{kind}" data-ends="{source_number} {target_number}'
        label = edge.label(source, target)
        if source.column != target.column:
            total = sums.pop(source_number, 0) / source.count
            yield _across(source, target, kind, title, bytes_text(total) if total else "")
        elif _are_neighbours(source, target) and not (edge.recomputed or edge.next_layer):
            yield _straight(source, target, kind, title, label)
        else:
            low, high = sorted((source.middle, target.middle))
            lane = _lane(taken[source.column], low, high)
            yield _around(source, target, kind, title, label, lane, source.column == 0)


def _saved(edges: Mapping[tuple[int, int], _Edge]) -> dict[int, int]:
    """Bytes that each step saves for another part, by step number; each tensor counts once."""
    names: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for (source, _), edge in edges.items():
        if edge.saved:
            names[source] |= edge.names
    return {source: sum(found.values()) for source, found in names.items()}


def _lane(taken: list[tuple[int, float, float]], low: float, high: float) -> int:
    """Take the first lane that is free between two heights."""
    busy = {n for n, begin, end in taken if begin < high and low < end}
    lane = next(n for n in range(len(taken) + 1) if n not in busy)
    taken.append((lane, low, high))
    return lane


def _are_neighbours(source: _Box, target: _Box) -> bool:
    gaps = target.y - (source.y + source.height), source.y - (target.y + target.height)
    numbers = {s.number for s in target.steps}
    after = max(s.number for s in source.steps) + 1
    return after in numbers and any(gap >= 0 for gap in gaps)


def _straight(source: _Box, target: _Box, kind: str, title: str, label: str) -> str:
    x = source.x + _WIDTH / 2
    down = target.y > source.y
    begin = source.y + source.height if down else source.y
    end = target.y if down else target.y + target.height
    text = f'<text class="bytes" x="{x + 6}" y="{(begin + end) / 2 + 4:.0f}">{label}</text>'
    return f'<g class="edge {kind}">{title}<path d="M{x} {begin:.0f}V{end:.0f}"/>{text}</g>'


def _around(
    source: _Box, target: _Box, kind: str, title: str, label: str, lane: int, at_left: bool
) -> str:
    sign = -1 if at_left else 1
    x = source.x + (0 if at_left else _WIDTH)
    far = x + sign * (18 + min(lane, 6) * _LANE)
    d = f"M{x} {source.middle:.0f}C{far} {source.middle:.0f} {far} {source.middle:.0f} {far} "
    middle = (source.middle + target.middle) / 2
    d += f"{middle:.0f}S{far} {target.middle:.0f} {x} {target.middle:.0f}"
    anchor = "end" if at_left else "start"
    text = (
        f'<text class="bytes" x="{far + sign * 3}" y="{middle + 4:.0f}" '
        f'text-anchor="{anchor}">{label}</text>'
    )
    shown = text if lane == 0 else ""
    return f'<g class="edge {kind}">{title}<path d="{d}"/>{shown}</g>'


def _across(source: _Box, target: _Box, kind: str, title: str, label: str) -> str:
    right = target.x > source.x
    begin = source.x + (_WIDTH if right else 0)
    end = target.x + (0 if right else _WIDTH)
    half = (begin + end) / 2
    d = f"M{begin} {source.middle:.0f}C{half} {source.middle:.0f} {half} {target.middle:.0f} {end} "
    d += f"{target.middle:.0f}"
    text = f'<text class="bytes" x="{begin + 14}" y="{source.middle - 5:.0f}">{label}</text>'
    return f'<g class="edge {kind}">{title}<path d="{d}"/>{text}</g>'


def _box(box: _Box) -> str:
    step = box.step
    kind = "ours" if step.is_ours else step.kind
    row = "#steps" if step.kind in FREE else f"#step-{step.number}"
    link = row if step.detail is None else f"#fusion-{step.detail}"
    names = ", ".join(s.name for s in box.steps)
    about = f"  {step.title}" if step.is_ours else ""
    head = names if step.kind in FREE else step.name
    cost = ", ".join(filter(None, (bytes_text(step.bytes), seconds_text(step.seconds))))
    rect = f'<rect x="{box.x}" y="{box.y:.0f}" width="{_WIDTH}" height="{box.height:.0f}" rx="5"/>'
    title = f"<title>{escape(f'{names}: {step.title}; {cost}')}</title>"
    lines = f'<text x="{box.x + 8}" y="{box.y + 13:.0f}"><tspan class="name">'
    lines += f"{escape(_cut(head))}</tspan>{escape(_cut(about, len(head)))}</text>"
    if step.kind not in FREE:
        lines += f'<text class="cost" x="{box.x + 8}" y="{box.y + 30:.0f}">{cost}</text>'
    number = f'data-step="{step.number}"'
    return f'<a href="{link}" class="step {kind}" {number}>{title}{rect}{lines}</a>'


def _cut(text: str, before: int = 0) -> str:
    room = _CHARACTERS - before
    return text if len(text) <= room else f"{text[: room - 1]}…"
