"""How long the controller waits for what, and where each number comes from.

Rule 1: values only; whoever waits decides.
Rule 2: integer nanoseconds.
"""

from dataclasses import dataclass

from erfs.units import MS, SECOND


@dataclass(frozen=True, slots=True)
class ControllerTimers:
    """The controller's timers. Each number can be set; the defaults are for a fabric of up to some thousand nodes."""

    discovery_ns: int = 500 * MS
    """Collect what agents run before the first computation: retained messages arrive within some 10 ms, reconnects within 200."""
    debounce_min_ns: int = 10 * MS
    """A dying switch reaches us as tens of facts within a few ms of each other; protection has already moved the traffic."""
    debounce_max_ns: int = 50 * MS
    """However long bad news keeps coming, the first of it waits no longer than the product's promise of 50 ms."""
    ack_wait_ns: int = 800 * MS
    """Without any acknowledgement for this long, programs are sent again: an agent writes 100 groups in some 10 ms."""
    ack_attempts: int = 3
    """After that many sendings the generation is incomplete, and later rounds wait for the missing."""
    leader_refresh_ns: int = 1 * SECOND
    """A live leader says so this often."""
    leader_listen_ns: int = 3 * SECOND
    """Three refreshes: a newcomer that hears none of them knows that the retained leader is dead."""
    is_protecting: bool = True
    """Whether programs are armed for failures that have not happened."""
    floor_ppm: int = 750_000
    """What every destination class must keep of its paths and capacity when something is taken out of use; below that an operator
    must force it. A fabric of four spines can do without one of them."""
