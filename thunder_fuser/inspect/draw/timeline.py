"""Memory over a program's steps as SVG, with the peak marked."""

from __future__ import annotations

from html import escape

from thunder_fuser.inspect.data.program import Program
from thunder_fuser.inspect.units import bytes_text

_WIDTH = 900
_HEIGHT = 180
_TOP = 24


def timeline(program: Program) -> str:
    """Return the chart of bytes held during each step, without the caller's arguments, and the
    share saved for backward; "" without steps.
    """
    levels = list(program.levels())
    if not levels:
        return ""
    peak = program.peak()
    scale = _HEIGHT / max(peak.bytes, 1)
    each = _WIDTH / len(levels)

    def path(heights: list[float]) -> str:
        points = [f"M0 {_TOP + _HEIGHT}"]
        for k, height in enumerate(heights):
            y = _TOP + _HEIGHT - height
            points.append(f"L{k * each:.1f} {y:.1f}H{(k + 1) * each:.1f}")
        return f"{''.join(points)}V{_TOP + _HEIGHT}Z"

    at = (peak.step + 0.5) * each
    anchor = "end" if at > _WIDTH / 2 else "start"
    where = program.steps[peak.step].name
    parts = "".join(
        f'<line class="between" x1="{p.first * each:.1f}" x2="{p.first * each:.1f}" y1="{_TOP}" '
        f'y2="{_TOP + _HEIGHT}"/><text class="part" x="{p.first * each + 4:.1f}" '
        f'y="{_TOP + _HEIGHT + 16}">{escape(p.title)}</text>'
        for p in program.parts
    )
    return (
        f'<svg class="memory" viewBox="0 0 {_WIDTH} {_TOP + _HEIGHT + 24}" role="img" '
        f'aria-label="memory: peak {bytes_text(peak.bytes)} in {escape(where)}">'
        f'<path class="held" d="{path([v.bytes * scale for v in levels])}"/>'
        f'<path class="kept" d="{path([v.saved * scale for v in levels])}"/>'
        f'{parts}<line class="peak" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" '
        f'y2="{_TOP + _HEIGHT}"/><text class="peak" x="{at:.1f}" y="{_TOP - 8}" '
        f'text-anchor="{anchor}">peak {bytes_text(peak.bytes)}: {escape(where)}</text></svg>'
    )
