"""Real datagrams through namespaces: what the prober says was lost is what was dropped."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from erfs_scenario.kernel.outages import FlowRecord, flow_records

from .namespaces import Namespace, wire

ADDRESSES = {4: ("192.0.2.1", "192.0.2.2", 24), 6: ("2001:db8::1", "2001:db8::2", 64)}
FLOWS = 8


@pytest.fixture
def hosts() -> Iterator[tuple[Namespace, Namespace]]:
    with Namespace() as one, Namespace() as other:
        wire(one, "e0", "02:00:00:00:01:01", other, "e0", "02:00:00:00:01:02")
        for address, far_address, length in ADDRESSES.values():
            one(f"ip addr add {address}/{length} dev e0")
            other(f"ip addr add {far_address}/{length} dev e0")
        yield one, other


def probe(
    hosts: tuple[Namespace, Namespace], version: int, output: Path, *, packets: int
) -> tuple[list[FlowRecord], int]:
    """Send FLOWS flows each way; return their records, those from the first host first, and how many datagrams each sent."""
    address, far_address, _ = ADDRESSES[version]
    ways = [(hosts[0], hosts[1], address, far_address), (hosts[1], hosts[0], far_address, address)]
    config = {
        "flows": [
            {
                "source_space": str(source.path),
                "target_space": str(target.path),
                "source_address": here,
                "target_address": there,
                "source_port": 20_000 + number,
            }
            for source, target, here, there in ways
            for number in range(FLOWS)
        ],
        "interval_ns": 1_000_000,
        "duration_ns": packets * 1_000_000,
        "output": str(output),
    }
    output.with_suffix(".json").write_text(json.dumps(config))
    program = [sys.executable, "-m", "erfs_scenario.kernel.prober", str(output.with_suffix(".json"))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ready\n"
    notes = np.load(output)
    flow, number = notes["flow"].astype(np.int64), notes["number"].astype(np.int64)
    return flow_records(2 * FLOWS, notes["sent_at_ns"], flow, number, notes["arrived_at_ns"]), len(notes["sent_at_ns"])


@pytest.mark.parametrize("version", [4, 6])
def test_every_datagram_of_a_healthy_wire_arrives_once_and_in_order(
    hosts: tuple[Namespace, Namespace], version: int, tmp_path: Path
) -> None:
    records, sent = probe(hosts, version, tmp_path / "notes.npz", packets=200)
    assert sent == 200
    assert [(record.lost, record.duplicates, record.reordered) for record in records] == [(0, 0, 0)] * 2 * FLOWS
    assert all(record.delay_min_ns > 0 for record in records)


def test_what_the_kernel_drops_one_way_is_lost_to_those_flows_alone(
    hosts: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    """The kernel drops datagrams 0 to 49 of every flow that comes from the first host: it counts them itself."""
    _, other = hosts
    rules = tmp_path / "drop.nft"
    rules.write_text(
        "table inet test {\n chain c {\n type filter hook input priority 0;\n"
        f" udp dport 50000 limit rate over 1/day burst {50 * FLOWS} packets accept\n udp dport 50000 drop\n }}\n}}\n"
    )
    other(f"nft -f {rules}")
    records, _ = probe(hosts, 4, tmp_path / "notes.npz", packets=120)
    first, second = records[:FLOWS], records[FLOWS:]
    assert [[(gap.first_lost, gap.lost) for gap in record.gaps] for record in first] == [[(0, 50)]] * FLOWS
    assert [record.lost for record in second] == [0] * FLOWS


def test_a_prober_that_is_asked_to_end_still_writes_its_notes(
    hosts: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    one, other = hosts
    address, far_address, _ = ADDRESSES[4]
    config = {
        "flows": [
            {
                "source_space": str(one.path),
                "target_space": str(other.path),
                "source_address": address,
                "target_address": far_address,
                "source_port": 20_000,
            }
        ],
        "interval_ns": 1_000_000,
        "duration_ns": 60_000_000_000,
        "output": str(tmp_path / "notes.npz"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = [sys.executable, "-m", "erfs_scenario.kernel.prober", str(tmp_path / "config.json")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert (tmp_path / "notes.npz").exists()
