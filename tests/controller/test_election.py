"""Who leads, and in which epoch."""

from dataclasses import replace

from erfs.messages import CONTROLLER
from erfs.ports import BusConnected, BusLost, Mark, Publish
from erfs.units import MS, SECOND
from erfs_controller.core import Exit, PersistEpoch


def leaders(commands):  # type: ignore[no-untyped-def]
    return [
        (command.message.state, command.message.epoch)
        for command in commands
        if isinstance(command, Publish) and command.message.kind == "leader"
    ]


def exits(commands):  # type: ignore[no-untyped-def]
    return [command.reason for command in commands if isinstance(command, Exit)]


def test_the_first_reign_is_epoch_one_and_is_refreshed_every_second(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.meet()
    assert bench.advance(499 * MS) == []
    said = bench.advance(500 * MS)
    assert said[:2] == [PersistEpoch(1), Mark("became_leader", {"epoch": 1})]
    assert leaders(said) == [("alive", 1)]
    assert bench.advance(1499 * MS) == []
    assert leaders(bench.advance(3500 * MS)) == [("alive", 1)] * 3


def test_the_epoch_is_one_above_every_epoch_known(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The own store, the retained leader, what agents run, and what they have heard of each may know the highest."""
    first = kit.bench(leaf_spine)
    first.lead()
    host = next(iter(leaf_spine.endpoints)).id

    def epoch_after(**known):  # type: ignore[no-untyped-def]
        bench = kit.bench(leaf_spine, stored_epoch=known.get("stored", 0))
        bench.meet([])
        if "leader" in known:
            bench.hear(kit.alive("gone before", known["leader"], "gone"), is_retained=True)
        if "agent" in known:
            program = first.programs[host].model_copy(update={"epoch": known["agent"]})
            said = bench.presence(host).model_copy(update={"installed": kit.installed(program)})
            bench.hear(said.model_copy(update={"epoch": known["agent"]}), is_retained=True)
        if "report" in known:
            bench.hear(bench.health(host).model_copy(update={"epoch": known["report"]}))
        return [mark.fields["epoch"] for mark in kit.marks(bench.wait(500 * MS), "became_leader")]

    assert epoch_after() == [1]
    assert epoch_after(stored=4) == [5]
    assert epoch_after(stored=4, leader=7) == [8]
    assert epoch_after(stored=4, leader=7, agent=9) == [10]
    assert epoch_after(stored=4, report=11) == [12]


def test_a_second_controller_beside_a_live_leader_exits(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine, controller_id="two")
    bench.meet()
    bench.hear(kit.alive("one", 3), is_retained=True)
    assert bench.wait(900 * MS) == [], "a retained leader may be alive: listen on, say nothing"

    said = bench.hear(kit.alive("one", 3))
    assert exits(said) == ['controller "one" leads in epoch 3: only one may; stop it first to lead with this one']
    assert bench.wait(10 * SECOND) == []
    assert kit.pushed(bench.said) == []
    assert leaders(bench.said) == []


def test_a_retained_leader_that_is_silent_for_three_refreshes_is_dead(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine, controller_id="two")
    bench.meet()
    bench.hear(kit.alive("one", 3), is_retained=True)
    assert leaders(bench.advance(2999 * MS)) == []
    assert leaders(bench.advance(3000 * MS)) == [("alive", 4)]


def test_a_leader_that_said_goodbye_is_not_waited_for(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine, controller_id="two")
    bench.meet()
    bench.hear(kit.alive("one", 3, "gone"), is_retained=True)
    assert leaders(bench.advance(500 * MS)) == [("alive", 4)]


def test_the_elder_of_two_leaders_exits_and_the_younger_tells_it(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    elder, younger = (
        kit.bench(leaf_spine, controller_id="one"),
        kit.bench(leaf_spine, stored_epoch=1, controller_id="two"),
    )
    elder.lead()
    younger.lead()
    assert leaders(younger.hear(kit.alive("one", 1))) == [("alive", 2)]
    assert len(exits(elder.hear(kit.alive("two", 2)))) == 1


def test_of_two_leaders_of_one_epoch_one_stays(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    one, two = kit.bench(leaf_spine, controller_id="one"), kit.bench(leaf_spine, controller_id="two")
    one.lead()
    two.lead()
    assert exits(two.hear(kit.alive("one", 1))) == []
    assert len(exits(one.hear(kit.alive("two", 1)))) == 1


def test_a_frozen_leader_that_wakes_listens_before_it_pushes(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """It was frozen for a minute; a link failed and a successor took over meanwhile. The first thing it hears is the failure."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.now_ns += 60 * SECOND
    said = bench.fail(bench.link("leaf0", "spine0"))
    said += bench.wait(900 * MS)
    assert kit.pushed(said) == []
    assert leaders(said) == []
    assert len(exits(bench.hear(kit.alive("two", 2)))) == 1


def test_a_frozen_leader_that_hears_nobody_leads_on(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.now_ns += 60 * SECOND
    bench.fail(bench.link("leaf0", "spine0"))
    said = bench.wait(3 * SECOND)
    assert leaders(said) == [("alive", 1)]
    assert len(kit.pushed(said)) > 0


def test_an_agent_that_knows_a_higher_epoch_raises_ours_once_no_other_leader_is_heard(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """An agent was away during discovery; it runs a program of a reign that left no other trace, and refuses ours as older."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    ours = bench.programs["leaf0"]
    theirs = ours.model_copy(update={"epoch": 7, "generation": 3, "digest": "f" * 16})
    bench.programs["leaf0"] = theirs

    refusal = bench.ack(ours, "refused", reason="older than 7.3, which runs", epoch=7)
    said = bench.hear(refusal)
    assert kit.marks(said) == [
        Mark(
            "program_not_installed",
            {
                "epoch": 1,
                "generation": 1,
                "reporter": "leaf0",
                "outcome": "refused",
                "reason": "older than 7.3, which runs",
            },
        )
    ]
    assert leaders(bench.wait(2999 * MS)) == []
    said = bench.wait(1 * MS)
    assert said[:2] == [PersistEpoch(8), Mark("became_leader", {"epoch": 8})]
    assert {(program.node, program.epoch) for program in kit.pushed(said)} == {("leaf0", 8)}
    assert bench.programs["leaf0"].digest == ours.digest


def test_a_higher_epoch_among_agents_is_not_raised_over_when_its_leader_lives(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.hear(bench.health("leaf0").model_copy(update={"epoch": 7}))
    said = bench.wait(500 * MS) + bench.hear(kit.alive("two", 7))
    assert leaders(said) == []
    assert len(exits(said)) == 1


def test_without_a_bus_nobody_leads_and_after_it_the_same_epoch_goes_on(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.handle(BusLost())
    assert bench.wait(10 * SECOND) == []

    bench.handle(BusConnected())
    said = bench.wait(500 * MS)
    assert leaders(said) == [("alive", 1)]
    assert kit.marks(said, "became_leader") == []
    assert {program.node for program in kit.pushed(said)} == bench.agents, "the broker may have lost its memory"
    assert {program.generation for program in kit.pushed(said)} == {1}


def test_a_broker_that_says_our_last_will_by_mistake_is_told_at_once(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.hear(bench.core.last_will().message)
    assert leaders(bench.handle(BusConnected())) == [("alive", 1)]


def test_last_will_and_farewell_say_gone(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    assert bench.core.farewell() == []
    bench.lead()
    will = bench.core.last_will().message
    assert (will.sender, will.state, will.controller, will.seq) == (CONTROLLER, "gone", "one", 0)
    assert leaders(bench.core.farewell()) == [("gone", 1)]


def test_messages_are_numbered_without_a_hole(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine, timers=replace(kit.bench(leaf_spine).timers, discovery_ns=1 * MS))
    bench.lead()
    bench.fail(bench.link("leaf0", "spine0"))
    bench.wait(5 * SECOND)
    numbers = [command.message.seq for command in bench.said if isinstance(command, Publish)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
