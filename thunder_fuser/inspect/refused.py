"""What was refused, each sentence once: of what, how often, where, and what to do about it."""

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
    """Refusals of one sentence.

    subjects  operations or tensors that it is said of, with how often, most often first
    lines     of the user's program that these are of
    remedy    what the catalogue of refusals says is to be done
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
        """`linear (60), matmul (120)`, or the name alone of a single one."""
        names = [name for name in self.subjects if name]
        if len(names) == 1:
            return names[0]
        return ", ".join(f"{name} ({self.subjects[name]})" for name in names)


def refused(found: Iterable[Refusal]) -> tuple[Refused, ...]:
    """Refusals by what they say, most frequent first."""
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
