"""The referee may not import the controller or the agents, so it names their timers again: the same numbers."""

from dataclasses import asdict

from erfs_agent.core import AgentTimers
from erfs_agent.probing import SessionTiming
from erfs_controller.timers import ControllerTimers
from erfs_scenario.plan import Timers


def test_a_simulation_runs_with_the_timers_of_the_daemons() -> None:
    own = asdict(Timers())
    theirs = asdict(ControllerTimers()) | asdict(AgentTimers())
    theirs |= {f"session_{name}": value for name, value in asdict(SessionTiming()).items() if name != "slow_start_ns"}
    differing = {name for name in own if own[name] != theirs[name]}
    # Unchanged periodic reports carry nothing and cost no event in simulation.
    assert differing == {"health_interval_ns"}
    assert own.keys() | {"is_protecting", "floor_ppm"} == theirs.keys()
