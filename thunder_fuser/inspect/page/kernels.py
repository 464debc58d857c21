"""Table of a page with the resources of each generated kernel."""

from __future__ import annotations

from collections import Counter
from html import escape

from thunder_fuser.inspect.data.program import Program
from thunder_fuser.inspect.page.table import Cell, Column, bar, table
from thunder_fuser.inspect.units import seconds_text


def kernels(program: Program) -> str:
    """Table of the resources of each generated kernel; equal fusions share a row."""
    columns = (
        Column("kernel", False),
        Column("operations", False),
        Column("launches"),
        Column("estimated time"),
        Column("blocks"),
        Column("threads"),
        Column("registers"),
        Column("spilled"),
        Column("shared memory"),
        Column("blocks per multiprocessor"),
        Column("occupancy"),
    )
    rows = []
    for k, (detail, segments) in enumerate(zip(program.details, program.segments(), strict=True)):
        times = Counter(step.key for step in segments.values())
        for kernel in detail.kernels:
            step = segments[kernel.segment]
            launches = len(detail.names) * times[step.key]
            rows.append(
                (
                    Cell(
                        f'<a href="#fusion-{k}">{escape(step.name)}</a><br>'
                        f'<code class="faint name">{escape(kernel.name)}</code>'
                    ),
                    Cell(escape(step.title)),
                    Cell(f"{launches}", launches),
                    Cell(seconds_text(step.seconds * launches), step.seconds * launches),
                    Cell(f"{kernel.blocks:,}", kernel.blocks),
                    Cell(f"{kernel.threads:,}", kernel.threads),
                    Cell(f"{kernel.registers}", kernel.registers),
                    Cell(f"{kernel.spilled_bytes} B", kernel.spilled_bytes),
                    Cell(f"{kernel.shared_bytes:,} B", kernel.shared_bytes),
                    Cell(f"{kernel.resident}", kernel.resident),
                    Cell(
                        f"{kernel.occupancy:.0%}{bar(kernel.occupancy)}",
                        round(kernel.occupancy, 4),
                    ),
                )
            )
    return (
        f'<p class="faint">{escape(_counted_by(program))}</p>{table(columns, rows)}' if rows else ""
    )


def _counted_by(program: Program) -> str:
    """Source of the kernel resources: compilers, or estimates."""
    kernels = [kernel for detail in program.details for kernel in detail.kernels]
    compilers = sorted({kernel.measured for kernel in kernels} - {""})
    told = [f"registers, spills and shared memory as {c} counted them" for c in compilers]
    if guessed := sum(not kernel.measured for kernel in kernels):
        told.append(f"estimates for {guessed} of {len(kernels)} kernels, which were not compiled")
    text = "; ".join(told)
    rules = "Occupancy is computed from these."
    return f"{text[:1].upper()}{text[1:]}. {rules}"
