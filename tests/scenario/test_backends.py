"""What a backend cannot do is refused before anything starts: with its line, all at once, and with what to do instead."""

import re
from pathlib import Path

import pytest

from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.faults import LINK_KINDS, NODE_KINDS, FaultKind
from erfs_scenario.backends import BACKENDS, kinds_of, refuse_plan, refuse_unsupported
from erfs_scenario.plan import compile_plan
from erfs_scenario.schema import parse_scenario
from tests.scenario.test_run import erfs

SCENARIO = """
name: demo
fabric: {generate: {kind: leaf-spine}, kernel: {kind: fat-tree, k: 4}}
faults:
  - {name: late, kind: rate_limit, target: {kind: trunk, random: 1}, rate: 10 Mbit/s, at: 3 s, for: 1 s}
  - {name: cut, kind: link_down, target: {kind: trunk, random: 1}, at: 2 s, for: 1 s}
  - {kind: rate_limit, target: {kind: trunk, random: 1}, rate: 20 Mbit/s, at: 1 s, for: 1 s}
"""
OPTIONS = {
    FaultKind.PACKET_LOSS: ", loss: 30 %",
    FaultKind.RATE_LIMIT: ", rate: 10 Mbit/s",
}


def refusal_of(text: str, fabric: Fabric, backend: str) -> str:
    """Return what a user is told about a scenario on *backend*; nothing if it can do it."""
    file = parse_scenario(text.encode(), "s.yaml")
    try:
        refuse_unsupported(compile_plan(file, fabric), backend, file)
    except ConfigError as error:
        return str(error)
    return ""


def scenario_with(kind: FaultKind) -> str:
    """Return a scenario with one fault of *kind*."""
    target = "trunk" if kind in LINK_KINDS else "switch" if kind in NODE_KINDS else ""
    said = f", target: {{kind: {target}, random: 1}}" if target else ""
    return f"""
name: demo
fabric: {{generate: {{kind: fat-tree, k: 4}}}}
faults:
  - {{kind: {kind.value}{said}{OPTIONS.get(kind, "")}, at: 1 s, for: 1 s}}
"""


def test_all_refusals_are_told_at_once_in_the_order_of_the_file_each_with_its_substitute(fat_tree: Fabric) -> None:
    assert refusal_of(SCENARIO, fat_tree, "sim").splitlines() == [
        's.yaml:5:24: fault "late": sim cannot do rate_limit: no rates are simulated (run it with --backend kernel)',
        's.yaml:7:12: fault "rate_limit-3": sim cannot do rate_limit: no rates are simulated (run it with --backend kernel)',
    ]


IN_BAND = """
name: demo
fabric:
  generate: {kind: fat-tree, k: 4}
  kernel: {kind: fat-tree, k: 4, bus: in_band}
faults:
  - {kind: bus_partition, at: 1 s, for: 1 s}
"""


@pytest.mark.parametrize(
    ("backend", "reason"),
    [("sim", "the delays of its bus are drawn, whatever breaks"), ("live", "its links carry no packets")],
)
def test_a_bus_in_band_is_sent_to_the_kernel_or_replaced_by_a_fault_of_the_bus(
    fat_tree: Fabric, backend: str, reason: str
) -> None:
    assert refusal_of(IN_BAND, fat_tree, backend).splitlines()[0] == (
        f"s.yaml:5:39: {backend} cannot run the bus in band: {reason}"
        " (run it with --backend kernel, or take the bus from some nodes instead: bus_partition)"
    )


def test_where_the_bus_is_in_band_nobody_can_be_cut_off_it_but_by_its_links(fat_tree: Fabric) -> None:
    assert refusal_of(IN_BAND, fat_tree, "kernel") == (
        's.yaml:7:12: fault "bus_partition-1": kernel cannot do bus_partition: the bus is in band, and there is no management'
        " network to be cut off from (break links that carry it instead: silent_drop or node_isolated)"
    )
    assert refusal_of(IN_BAND.replace("in_band", "out_of_band"), fat_tree, "kernel") == ""


@pytest.mark.parametrize(("host", "is_refused"), [("pod0-edge0-host0", True), ("pod0-edge0-host1", False)])
def test_the_host_of_a_bus_in_band_cannot_lose_its_power(fat_tree: Fabric, host: str, is_refused: bool) -> None:
    text = IN_BAND.replace("bus_partition", f"node_down, target: {{name: {host}}}")
    told = (
        's.yaml:7:12: fault "node_down-1": kernel cannot do node_down: the bus is in band there, and broker and controller'
        " would live on (cut it off instead: node_isolated)"
    )
    assert refusal_of(text, fat_tree, "kernel") == (told if is_refused else "")


@pytest.mark.parametrize("kind", list(FaultKind))
def test_the_kernel_can_do_every_kind(fat_tree: Fabric, kind: FaultKind) -> None:
    assert refusal_of(scenario_with(kind), fat_tree, "kernel") == ""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_refusal_names_only_what_the_other_backends_and_kinds_can_do(
    fat_tree: Fabric, backend: str, kind: FaultKind
) -> None:
    told = refusal_of(scenario_with(kind), fat_tree, backend)
    assert bool(told) == (kind not in kinds_of(backend))
    if told:
        (backends,) = re.findall(r"--backend (\w+(?: or \w+)?)", told)
        assert all(kind in kinds_of(name) for name in backends.split(" or "))
        instead = (
            set(re.findall(r"\w+", told.rpartition("instead: ")[2])) & set(FaultKind) if "instead" in told else set()
        )
        assert instead <= kinds_of(backend)
        assert bool(instead) == ("instead" in told)


@pytest.mark.parametrize("command", ["run", "plan", "check"])
def test_a_command_for_a_backend_refuses_what_it_cannot_do_and_writes_nothing(tmp_path: Path, command: str) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    done = erfs(command, "s.yaml", "--backend", "live", folder=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.count("s.yaml:") == 2
    assert 'fault "late": live cannot do rate_limit' in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_a_plan_for_the_kernel_is_made_on_the_fabric_that_the_scenario_names_for_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    assert "fat-tree k=4" in erfs("plan", "s.yaml", "--backend", "kernel", folder=tmp_path).stdout
    assert "fat-tree" not in erfs("plan", "s.yaml", folder=tmp_path).stdout
    assert erfs("check", "s.yaml", "--backend", "kernel", folder=tmp_path).returncode == 0


def test_a_plan_without_its_scenario_is_refused_by_the_first_fault_in_time_of_each_kind(fat_tree: Fabric) -> None:
    plan = compile_plan(parse_scenario(SCENARIO.encode(), "s.yaml"), fat_tree)
    with pytest.raises(ConfigError) as told:
        refuse_plan(plan, "live", "p.json")

    assert str(told.value) == (
        'p.json: fault "rate_limit-3": live cannot do rate_limit: no packets are sent (run it with --backend kernel)'
    )
    refuse_plan(plan, "kernel", "p.json")
