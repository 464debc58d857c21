"""Mean value analysis of a closed queueing network: throughput of a fixed number of agents.

Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks", J. ACM 27 (1980),
theorem 1: an arriving agent finds the mean queue of the network with one agent less.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """Two kinds of servers: the issue slots of each multiprocessor, and the memory they share.

    memory   memory service time of one round of an agent, in seconds, at one multiprocessor's share
             of the device's bandwidth
    work     service time of issue slots and pipes of one round, in seconds
    delay    seconds of a round in which an agent is at neither server
    sharing  multiprocessors whose agents arrive at memory independently of each other
    spread   fraction of the queue in front of it that an agent waits for: 1 for service times as
             variable as exponential ones, 1/2 for constant ones (Pollaczek-Khinchine mean)
    """

    memory: float
    work: float
    delay: float
    sharing: int = 1
    spread: float = 1.0

    def rate(self, agents: int) -> float:
        """Return rounds per second of `agents` agents of one multiprocessor together, at most the
        service rate of the busier server.
        """
        at_memory = at_work = rate = 0.0
        for n in range(1, agents * self.sharing + 1):
            memory = self.memory / self.sharing * (1 + self.spread * at_memory)
            work = self.work * (1 + self.spread * at_work)
            rate = n / max(self.delay + memory + work, 1e-30)
            at_memory = rate * memory
            at_work = rate * work / self.sharing
        return min(rate / self.sharing, 1 / max(self.memory, self.work, 1e-30))
