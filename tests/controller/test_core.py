"""The controller as a whole: successors, reloads, strangers, the same answers everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ports import Mark, Publish, Subscribe
from erfs.topics import Channel
from erfs.units import MS, SECOND
from erfs_controller.core import FabricReloaded


def test_a_strangers_fact_changes_nothing(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    said = bench.hear(bench.fact("core0-0", link).model_copy(update={"sender": "pod3-agg1"})) + bench.wait(200 * MS)
    assert kit.marks(said) == [
        Mark("fact_refused", {"link": link, "reporter": "pod3-agg1", "reason": "not an end of this link"})
    ]
    assert kit.pushed(said) == []


def test_all_agents_gone_is_no_failure(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    said = [command for node in sorted(bench.agents) for command in bench.hear(bench.presence(node, "gone"))]
    said += bench.wait(500 * MS)
    assert kit.marks(said) == []
    assert kit.pushed(said) == []


def test_a_successor_adopts_programs_that_are_right_and_pushes_nothing(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """Also after a failure, when programs carry the facts they were computed from, each as of its own push."""
    first = kit.bench(fat_tree)
    first.lead()
    first.hear(first.fact("core0-0", first.link("core0-0", "pod0-agg0")))
    first.wait(100 * MS)
    first.hear(first.fact("pod0-agg0", first.link("core0-0", "pod0-agg0")))
    first.fail(first.link("core1-1", "pod3-agg1"))
    first.wait(100 * MS)

    second = first.succeed(stored_epoch=0)
    said = second.lead()
    assert kit.pushed(said) == []
    unprotected = kit.marks(first.said, "routes_computed")[-1].fields["unprotected"]
    assert kit.marks(said, "became_leader", "routes_computed", "restoration_finished") == [
        Mark("became_leader", {"epoch": 2}),
        Mark("routes_computed", {"generation": 1, "changed": 0, "rounds": 0, "unprotected": unprotected}),
        Mark("restoration_finished", {"epoch": 2, "generation": 0}),
    ]


def test_an_agent_that_returns_under_a_successor_is_given_its_program_in_the_new_epoch(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """What the predecessor had left for it is right still, but agents refuse what is older than the reign they know."""
    bench = kit.bench(fat_tree)
    bench.lead()
    bench.mute = {"core0-0"}
    bench.hear(bench.presence("core0-0", "gone"))
    bench.fail(bench.link("core0-0", "pod0-agg0"))
    bench.wait(100 * MS)
    left = bench.topics["core0-0"]
    successor = bench.succeed()
    successor.lead(successor.agents - {"core0-0"})

    successor.mute = set()
    (given,) = kit.pushed(successor.hear(successor.presence("core0-0", incarnation=2)))

    assert (given.node, given.digest) == ("core0-0", left.digest)
    assert (left.epoch, given.epoch) == (1, 2)


def test_a_successor_knows_right_programs_by_their_digest_alone(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The broker lost its memory; agents say which digest they run."""
    first = kit.bench(leaf_spine)
    first.lead()
    second = first.succeed(topics={})
    assert kit.pushed(second.lead()) == []


def test_a_successor_pushes_only_what_differs(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """A link failed while nobody led."""
    first = kit.bench(fat_tree)
    first.lead()
    first.fact("core0-0", first.link("core0-0", "pod0-agg0"))
    second = first.succeed()
    changed = {program.node for program in kit.pushed(second.lead())}

    witness = kit.bench(fat_tree)
    witness.lead()
    said = witness.fail(witness.link("core0-0", "pod0-agg0")) + witness.wait(100 * MS)
    assert changed == {program.node for program in kit.pushed(said)}
    assert {program.epoch for program in second.programs.values()} == {1, 2}


def test_a_successor_finishes_what_its_predecessor_left_half_done(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """core0-0 was sent a program and may be installing it: the successor overtakes it and waits for the answer."""
    first = kit.bench(fat_tree)
    first.lead()
    first.mute = {"core0-0"}
    first.fail(first.link("core0-0", "pod0-agg0"))
    first.wait(20 * MS)
    assert first.topics["core0-0"].digest != first.programs["core0-0"].digest

    second = first.succeed()
    said = second.lead()
    assert {program.node for program in kit.pushed(said)} == {"core0-0"}
    assert second.programs["core0-0"].epoch == 2
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_programs_of_earlier_reigns_are_read_once(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    wanted = [command.channels for command in bench.said if isinstance(command, Subscribe)]
    assert [Channel.PROGRAM in channels for channels in wanted] == [True, False]


def test_an_agent_that_appears_later_is_given_its_program(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.mute = {"leaf0"}
    said = bench.lead(bench.agents - {"leaf0"})
    assert kit.marks(said)[-1].event == "restoration_finished", "nobody waits for an agent that was never there"
    bench.mute = set()
    said = bench.hear(bench.presence("leaf0"))
    assert [program.node for program in kit.pushed(said)] == ["leaf0"]


def test_a_fabric_that_grew_gives_the_new_nodes_programs(kit) -> None:  # type: ignore[no-untyped-def]
    small = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2})
    large = generate("leaf-spine", {"leaves": 5, "spines": 2, "hosts_per_leaf": 2})
    bench = kit.bench(small)
    bench.lead()
    bench.fabric = large
    said = bench.handle(FabricReloaded(large))
    assert "leaf4" in {program.node for program in kit.pushed(said)}
    assert "@leaf4" in {route.destination for route in bench.programs["leaf0"].routes}
    assert kit.marks(said, "push_refused") == []
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_an_idle_controller_only_refreshes_its_lead(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    said = bench.wait(60 * SECOND)
    assert len(said) == 60
    assert {command.address.channel for command in said if isinstance(command, Publish)} == {Channel.LEADER}


CONVERSATION = """
import hashlib, sys
from conftest import Bench
from erfs.generators import generate
from erfs.units import MS
fabric = generate("fat-tree", {"k": 4})
bench = Bench(fabric)
bench.lead()
for one, other in (("core0-0", "pod0-agg0"), ("pod1-agg1", "pod1-edge0"), ("pod2-edge1", "pod2-edge1-host0")):
    bench.fail(bench.link(one, other))
    bench.wait(100 * MS)
for one, other in (("core0-0", "pod0-agg0"), ("pod2-edge1", "pod2-edge1-host0")):
    bench.repair(bench.link(one, other))
    bench.wait(100 * MS)
successor = bench.succeed()
successor.lead()
said = [repr(command) for command in bench.said + successor.said]
assert len(said) > 100
print(hashlib.sha256("\\n".join(said).encode()).hexdigest())
"""


def test_equal_conversations_give_equal_answers_under_every_hash_seed() -> None:
    def answer(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", CONVERSATION],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    answers = [answer(seed) for seed in ("0", "1", "random")]
    assert len(answers[0]) == len(hashlib.sha256().hexdigest())
    assert answers == [answers[0]] * 3


@pytest.mark.parametrize("kind", ["torus", "dragonfly"])
def test_fabrics_without_tiers_are_led_too(kit, kind: str) -> None:  # type: ignore[no-untyped-def]
    fabric: Fabric = generate(kind, {"dims": "3x3"} if kind == "torus" else {})
    bench = kit.bench(fabric)
    bench.lead()
    trunk = fabric.trunks[0].id
    for conversation in (bench.fail, bench.repair):
        said = conversation(trunk) + bench.wait(100 * MS)
        assert kit.marks(said)[-1].event == "restoration_finished"
