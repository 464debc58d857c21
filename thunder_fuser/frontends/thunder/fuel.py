"""Optimization fuel: how many more fusions may be made, to find the one that breaks a program.

Thunder's way is `executor.set_fuel(n)`; ours is the option `fuel` (THUNDER_FUSER_FUEL), of which
each `with options(fuel=n)` block gets a tank of its own.
"""

from __future__ import annotations

from thunder.extend import FUEL_LEVEL

from thunder_fuser.config import Options
from thunder_fuser.errors import FuserValueError


class Tank:
    """Fuel that was set explicitly, or else what is left of the option's."""

    def __init__(self) -> None:
        self._explicit: int | None = None
        self._options: Options | None = None
        self._left = 0

    def set(self, level: int | FUEL_LEVEL) -> None:
        """A number of fusions; UNLIMITED leaves the limit, if any, to the option."""
        if level is FUEL_LEVEL.UNLIMITED:
            self._explicit = None
        elif isinstance(level, int) and level >= 0:
            self._explicit = level
        else:
            raise FuserValueError(f"fuel: expected a count or FUEL_LEVEL.UNLIMITED, got {level!r}")

    def take(self, amount: int, options: Options) -> bool:
        """Use `amount` of fuel if that much is left."""
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
