"""The life of one port: every pair of state and signal, and how long good news waits."""

import pytest

from erfs.errors import Bug
from erfs.units import SECOND
from erfs_agent.port_state import TRANSITIONS, Port, PortState, Signal, Waiting, next_state

WAITING = Waiting(wait_to_restore_ns=2 * SECOND, wait_to_restore_max_ns=10 * SECOND, flap_window_ns=60 * SECOND)

EXPECTED = {
    (PortState.UP, Signal.CARRIER_LOST): PortState.DOWN,
    (PortState.UP, Signal.CARRIER_BACK): PortState.UP,
    (PortState.DOWN, Signal.CARRIER_LOST): PortState.DOWN,
    (PortState.DOWN, Signal.CARRIER_BACK): PortState.HELD,
    (PortState.HELD, Signal.CARRIER_LOST): PortState.DOWN,
    (PortState.HELD, Signal.CARRIER_BACK): PortState.HELD,
    (PortState.HELD, Signal.WAIT_OVER): PortState.UP,
}


@pytest.mark.parametrize("state", PortState)
@pytest.mark.parametrize("signal", Signal)
def test_every_pair_is_in_the_table_or_refused(state: PortState, signal: Signal) -> None:
    if (state, signal) in EXPECTED:
        assert next_state(state, signal) is EXPECTED[state, signal]
    else:
        with pytest.raises(Bug, match=f'"{state}" cannot get the signal "{signal}"'):
            next_state(state, signal)


def test_the_table_has_a_row_for_each_state() -> None:
    assert set(TRANSITIONS) == set(PortState)


def test_a_port_is_down_at_once_and_up_only_after_the_wait() -> None:
    port = Port(WAITING)

    assert port.signal(Signal.CARRIER_LOST, 0)
    assert port.state is PortState.DOWN
    assert port.signal(Signal.CARRIER_BACK, 5 * SECOND)
    assert (port.state, port.held_until_ns) == (PortState.HELD, 7 * SECOND)
    assert port.signal(Signal.WAIT_OVER, 7 * SECOND)
    assert (port.state, port.held_until_ns) == (PortState.UP, None)


def test_hearing_the_same_again_changes_nothing() -> None:
    port = Port(WAITING)
    port.signal(Signal.CARRIER_LOST, 0)
    port.signal(Signal.CARRIER_BACK, 0)

    assert not port.signal(Signal.CARRIER_BACK, 1 * SECOND)
    assert port.held_until_ns == 2 * SECOND


def test_each_flap_doubles_the_wait_up_to_its_maximum() -> None:
    port = Port(WAITING)
    waits = []
    for at_ns in range(0, 5 * SECOND, SECOND):
        port.signal(Signal.CARRIER_LOST, at_ns)
        port.signal(Signal.CARRIER_BACK, at_ns)
        assert port.held_until_ns is not None
        waits.append(port.held_until_ns - at_ns)

    assert waits == [2 * SECOND, 4 * SECOND, 8 * SECOND, 10 * SECOND, 10 * SECOND]


def test_a_loss_soon_after_the_return_is_a_flap_and_a_late_one_is_not() -> None:
    port = Port(WAITING)
    port.signal(Signal.CARRIER_LOST, 0)
    port.signal(Signal.CARRIER_BACK, 0)
    port.signal(Signal.WAIT_OVER, 2 * SECOND)

    port.signal(Signal.CARRIER_LOST, 62 * SECOND)
    assert port.wait_ns == 4 * SECOND
    port.signal(Signal.CARRIER_BACK, 62 * SECOND)
    port.signal(Signal.WAIT_OVER, 66 * SECOND)
    port.signal(Signal.CARRIER_LOST, 66 * SECOND + 60 * SECOND + 1)
    assert port.wait_ns == 2 * SECOND
