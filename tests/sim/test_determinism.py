"""The same plan gives the same journal, byte for byte, whatever the hash seed; another seed gives another."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

SCENARIO = """
name: everything
fabric: {generate: {kind: leaf-spine, leaves: 4, spines: 3, hosts_per_leaf: 2, attachments: 2}}
faults:
  - {name: cut, kind: link_down, target: {kind: trunk, random: 2}, at: 1 s, for: 4 s}
  - {name: dark, kind: node_down, target: {kind: switch, tier: 2, random: 1}, at: 2 s, for: 2 s}
  - {name: crash, kind: agent_kill, target: {kind: switch, tier: 1, random: 1}, at: 2500 ms, for: 1 s}
  - {name: headless, kind: controller_kill, at: 3 s, for: 1 s}
  - {name: split, kind: bus_partition, target: {kind: switch, tier: 1, random: 1}, at: 4500 ms, for: 3 s}
  - {name: silent, kind: silent_drop, target: {kind: trunk, random: 1}, at: 1500 ms, for: 2 s}
  - {name: deaf, kind: one_way_drop, target: {kind: trunk, random: 1}, at: 5 s, for: 1 s}
  - {name: dirty, kind: packet_loss, loss: 40 %, target: {kind: trunk, random: 1}, at: 2 s, for: 3 s}
  - {name: loose, kind: link_flap, period: 300 ms, target: {kind: trunk, random: 1}, at: 6 s, for: 1 s}
  - {name: still, kind: agent_freeze, target: {kind: switch, tier: 1, random: 1}, at: 6 s, for: 1 s}
  - {name: forgetful, kind: broker_kill, at: 7500 ms, for: 500 ms}
"""


JournalOf = Callable[[str, int], bytes]


@pytest.fixture(scope="module")
def journal_of(tmp_path_factory: pytest.TempPathFactory) -> JournalOf:
    """Run the scenario in a process of its own, with a hash seed and a seed, and return its journal."""
    folder = tmp_path_factory.mktemp("determinism")
    (folder / "everything.yaml").write_text(SCENARIO)

    @cache
    def run(hash_seed: str, seed: int) -> bytes:
        out = folder / f"{hash_seed}-{seed}"
        program = (sys.executable, "-c", "from erfs.cli.main import main; main()")
        arguments = ("run", "everything.yaml", "--seed", str(seed), "--out", str(out))
        done = subprocess.run(
            (*program, *arguments),
            cwd=folder,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1, 2), done.stderr
        return (out / "journal.jsonl").read_bytes()

    return run


def test_the_hash_seed_changes_nothing(journal_of: JournalOf) -> None:
    assert len({hashlib.sha256(journal_of(hash_seed, 1)).hexdigest() for hash_seed in ("0", "1", "random")}) == 1


def test_another_seed_gives_another_journal(journal_of: JournalOf) -> None:
    assert journal_of("0", 1) != journal_of("0", 2)


def test_every_fault_takes_effect_and_ends(journal_of: JournalOf) -> None:
    events = Counter(json.loads(line)["event"] for line in journal_of("0", 1).splitlines())
    assert (events["fault_effective"], events["fault_ended"]) == (11, 11)


def test_no_line_goes_back_in_time(journal_of: JournalOf) -> None:
    instants = [json.loads(line)["at_ns"] for line in journal_of("0", 1).splitlines()]
    assert instants == sorted(instants)
