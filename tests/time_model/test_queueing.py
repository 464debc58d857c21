"""Closed networks whose rates are known."""

from __future__ import annotations

import pytest

from thunder_fuser.time_model.queueing import Network


@pytest.mark.parametrize("sharing", [1, 6])
def test_a_lone_agent_waits_for_nobody(sharing: int) -> None:
    assert Network(3.0, 2.0, 5.0).rate(1) == pytest.approx(1 / 10)
    # Memory that others share answers it the sooner, and is the busier.
    alone = Network(3.0, 2.0, 5.0, sharing).rate(1)
    assert 1 / 10 <= alone <= 1 / (3.0 / sharing + 2.0 + 5.0)


@pytest.mark.parametrize("agents", [1, 2, 5, 40])
def test_two_stations_that_are_equally_busy(agents: int) -> None:
    """Buzen's normalization constants: G(n) = (n + 1) d^n, and the rate is G(n - 1) / G(n)."""
    assert Network(2.0, 2.0, 0.0).rate(agents) == pytest.approx(agents / (agents + 1) / 2)


def test_stations_of_which_one_is_busier() -> None:
    """G(2) = a^2 + a b + b^2."""
    assert Network(4.0, 3.0, 0.0).rate(2) == pytest.approx((4 + 3) / (16 + 12 + 9))


@pytest.mark.parametrize("network", [Network(4.0, 3.0, 1.0), Network(1.0, 3.0, 20.0, 6, 0.5)])
def test_more_agents_get_more_done_until_a_station_is_never_idle(network: Network) -> None:
    rates = [network.rate(n) for n in (1, 2, 4, 8, 64)]
    busiest = max(network.memory, network.work)
    assert rates == sorted(rates)
    assert rates[0] < rates[1] < rates[-1] <= 1 / busiest < 1.1 * rates[-1]


def test_rounds_that_are_alike_are_faster() -> None:
    assert Network(4.0, 3.0, 1.0, spread=0.5).rate(3) > Network(4.0, 3.0, 1.0).rate(3)
