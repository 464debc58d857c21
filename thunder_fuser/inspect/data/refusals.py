"""Refusals grouped by message, with subjects, counts, source lines and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunder_fuser.errors import Refusal
from thunder_fuser.inspect.units import line_text
from thunder_fuser.refusal_codes import CODES

_REMEDIES = {row.code: row.remedy for row in CODES}


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusals with one code and text.

    subjects  operations or tensors refused, with counts, most frequent first
    lines     source lines of the user's program
    remedy    remedy of the code in refusal_codes.py
    """

    code: str
    text: str
    subjects: Mapping[str, int]
    lines: tuple[str, ...]
    count: int

    @property
    def remedy(self) -> str:
        return _REMEDIES.get(self.code, "")

    @property
    def of(self) -> str:
        """Subjects as `linear (60), matmul (120)`, or just the name of a single one."""
        names = [name for name in self.subjects if name]
        if len(names) == 1:
            return names[0]
        return ", ".join(f"{name} ({self.subjects[name]})" for name in names)


def refused(found: Iterable[Refusal]) -> tuple[Refused, ...]:
    """Group refusals by code and text, most frequent first."""
    groups: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in found:
        groups.setdefault((refusal.code, refusal.text), []).append(refusal)
    made = [
        Refused(
            code,
            text,
            dict(Counter(r.subject for r in group).most_common()),
            tuple(dict.fromkeys(line_text(r.origin) for r in group if r.origin)),
            len(group),
        )
        for (code, text), group in groups.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.count))
