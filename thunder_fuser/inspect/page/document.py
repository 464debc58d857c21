"""HTML page of a program: one self-contained file without network requests, usable offline and in
print.

The page works without its script, which only sorts tables, opens the target of a link and copies
repros.
"""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path

from thunder_fuser.inspect.data.program import Program
from thunder_fuser.inspect.draw.graph import graph
from thunder_fuser.inspect.page.fusions import texts
from thunder_fuser.inspect.page.kernels import kernels
from thunder_fuser.inspect.page.memory import memory
from thunder_fuser.inspect.page.steps import lines, refusals, steps
from thunder_fuser.inspect.units import bytes_text, seconds_text


def page(program: Program) -> str:
    """Return the complete HTML file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(program.name)}: thunder_fuser</title></head>"
        f'<body class="thunder-fuser">{body(program)}</body></html>\n'
    )


def body(program: Program) -> str:
    """Return the page without its HTML document frame, for a notebook cell."""
    sections = (
        ("program", "Program", _graph(program)),
        ("memory", "Memory", memory(program)),
        ("steps", "Steps", steps(program)),
        ("lines", "Lines of the program", lines(program)),
        ("kernels", "Kernels", kernels(program)),
        ("refusals", "Left to torch", refusals(program.refusals)),
        ("apart", "Why kernels are separate", refusals(program.apart)),
        *texts(program),
    )
    shown = [(anchor, title, html) for anchor, title, html in sections if html]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    parts = "".join(
        f'<section><h2 id="{anchor}">{title}</h2>{html}</section>' for anchor, title, html in shown
    )
    about = " and ".join(part.title for part in program.parts[:3])
    device = f", estimated for {program.device}" if program.device else ""
    return (
        f"<style>{_resource('draw/picture.css')}{_resource('page/style.css')}</style>"
        f'<main class="thunder-fuser">'
        f'<header><h1>{escape(program.name)}</h1><p class="faint">{escape(about + device)}</p>'
        f"</header>{_facts(program)}<nav>{links}</nav>{parts}</main>"
        f"<script>{_resource('page/page.js')}</script>"
    )


def styled(html: str) -> str:
    """Wrap a part of the page with its style sheet, for display alone."""
    style = f"<style>{_resource('draw/picture.css')}</style>"
    return f'{style}<div class="thunder-fuser"><div class="wide">{html}</div></div>'


@cache
def _resource(name: str) -> str:
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8")


def _facts(program: Program) -> str:
    peak = program.peak()
    facts = [
        (f"{program.kernels:,}", "generated kernels"),
        (f"{program.calls:,}", "torch calls"),
        (bytes_text(program.bytes), f"moved by kernels (ideal {bytes_text(program.bytes_ideal)})"),
        (bytes_text(program.torch_bytes), "moved by torch calls, at least"),
        (bytes_text(peak.bytes), "peak memory, besides arguments"),
    ]
    if program.collectives:
        facts.append((f"{program.collectives:,}", "collectives between devices"))
    if len(program.parts) > 1:
        facts.append((bytes_text(program.saved_bytes), "saved for backward"))
    if program.kernels and program.seconds:
        speed = program.copy_seconds / max(
            sum(s.seconds for s in program.steps if s.is_ours), 1e-12
        )
        known = sum(s.seconds for s in program.steps if s.is_ours)
        facts.append(
            (
                seconds_text(known),
                f"estimated time of kernels, {speed:.0%} of a copy's speed",
            )
        )
    items = "".join(f"<li><b>{escape(n)}</b>{escape(text)}</li>" for n, text in facts)
    return f'<ul class="facts">{items}</ul>'


def _graph(program: Program) -> str:
    legend = (
        "Boxes: generated kernels (green), torch calls (yellow), steps without memory traffic "
        "(small). Edges: tensors in memory, with bytes: saved for backward (orange), recomputed "
        "(dashed), passed to the next equal layer (dotted). Boxes link to details."
    )
    return f'<p class="faint">{legend}</p><div class="wide tall">{graph(program)}</div>'
