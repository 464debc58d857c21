"""Mean value analysis of a closed network of queues: how often agents that go round get through.

Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks", J. ACM 27 (1980),
theorem 1: what an agent finds in front of it is what one agent less would leave there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """Multiprocessors that each issue instructions, and the memory that all of them ask.

    memory   seconds that memory takes for one agent, were it shared by nobody: those of the whole
             device divided by the share of it that one multiprocessor has
    work     the same of issue slots and pipes
    delay    seconds of a round in which an agent asks for neither
    sharing  multiprocessors whose agents come to memory independently of each other
    spread   how much of those in front of it an agent waits for: 1 where rounds vary as much as
             exponential ones, 1/2 where they are alike (Pollaczek and Khinchine's mean)
    """

    memory: float
    work: float
    delay: float
    sharing: int = 1
    spread: float = 1.0

    def rate(self, agents: int) -> float:
        """Rounds in a second that so many agents of a multiprocessor make together: no more than
        the busier one of both has time for.
        """
        at_memory = at_work = rate = 0.0
        for n in range(1, agents * self.sharing + 1):
            memory = self.memory / self.sharing * (1 + self.spread * at_memory)
            work = self.work * (1 + self.spread * at_work)
            rate = n / max(self.delay + memory + work, 1e-30)
            at_memory = rate * memory
            at_work = rate * work / self.sharing
        return min(rate / self.sharing, 1 / max(self.memory, self.work, 1e-30))
