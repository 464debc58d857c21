"""Optimization fuel: a limit on the number of fusions, to bisect for the one that is wrong.

It is set by Thunder's `executor.set_fuel(n)`, or by the option `fuel` (THUNDER_FUSER_FUEL); each
`with options(fuel=n)` block starts with a full tank.
"""

from __future__ import annotations

from thunder.extend import FUEL_LEVEL

from thunder_fuser.config import Options
from thunder_fuser.errors import FuserValueError


class Tank:
    """Remaining fuel: the explicitly set amount, or else the rest of the option's."""

    def __init__(self) -> None:
        self._explicit: int | None = None
        self._options: Options | None = None
        self._left = 0

    def set(self, level: int | FUEL_LEVEL) -> None:
        """Set the number of fusions; UNLIMITED leaves the limit, if any, to the option."""
        if level is FUEL_LEVEL.UNLIMITED:
            self._explicit = None
        elif isinstance(level, int) and level >= 0:
            self._explicit = level
        else:
            raise FuserValueError(f"fuel: expected a count or FUEL_LEVEL.UNLIMITED, got {level!r}")

    def take(self, amount: int, options: Options) -> bool:
        """Consume `amount` of fuel if that much is left; True on success."""
        if self._explicit is not None:
            if self._explicit < amount:
                return False
            self._explicit -= amount
            return True
        if options.fuel is None:
            return True
        if options is not self._options:
            self._options, self._left = options, options.fuel
        if self._left < amount:
            return False
        self._left -= amount
        return True
