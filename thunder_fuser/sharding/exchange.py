"""Exchange of one shard for another along a mesh axis: the parts that devices send each other.

The devices hold a digit of an index each, and shall hold another digit. If the digits are of two
dimensions, or are apart in one, every device has a part for every other one. If they overlap, as 4
chunks of 8 elements and 4 cyclic shards do, each has parts for some:

    elements   0 1 | 2 3 | 4 5 | 6 7     device 0 sends element 0 to itself, and 1 to device 1;
    become     0 4 | 1 5 | 2 6 | 3 7     device 1 sends element 2 to device 2, and 3 to device 3
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.sharding.mesh import Shard


@dataclass(frozen=True, slots=True)
class Exchange:
    """An all-to-all along a mesh axis.

    sent    digit whose values number the parts that a device sends
    joined  digit whose values number the parts that it receives
    size    devices along the axis
    """

    sent: Shard
    joined: Shard
    size: int

    def attributes(self, at: int) -> dict[str, int | tuple[int, ...]]:
        """Return those of the call of device `at`: the devices that it has parts for, and those
        that it receives parts from.
        """
        to = self._peers(self.sent, self.joined, at)
        return {"size": self.size, "to": to, "of": self._peers(self.joined, self.sent, at)}

    def _peers(self, digit: Shard, other: Shard, at: int) -> tuple[int, ...]:
        """What both placements have, `common` values of a digit, is the low part of the wider one's
        coordinate, whose high part is the wider digit, and the high part of the narrower one's.
        """
        count = digit.size
        common = self.size // count
        if digit.width < other.width:
            return tuple(at % common * count + k for k in range(count))
        return tuple(k * common + at // count for k in range(count))


def exchange(source: Shard, target: Shard) -> Exchange | None:
    """Return the exchange between two different shards over as many devices; None if devices would
    have parts of different sizes for each other.
    """
    size = source.size
    low, high = sorted((source, target), key=lambda shard: shard.width)
    if source.dim != target.dim or high.width % (low.width * size) == 0:
        return Exchange(target, source, size)
    count, rest = divmod(high.width, low.width)
    if rest or size % count:
        return None
    # Both placements have what is between the low digit of the narrower one and the high digit of
    # the wider one.
    lowest = Shard(source.dim, low.width, count)
    highest = Shard(source.dim, high.width * (size // count), count)
    return Exchange(*((lowest, highest) if source is high else (highest, lowest)), size)
