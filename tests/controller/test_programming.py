"""Generations, rounds, acknowledgements, retries."""

import pytest

from erfs.generators import generate
from erfs.paths import Loop, PushVerdict, RoundVerdict, Unreached, Valley
from erfs.ports import BusConnected, BusLost, Mark
from erfs.units import MS, SECOND
from erfs_controller import programming
from erfs_controller.core import ControllerTimers
from erfs_controller.programming import Flaw

PUSHING = (
    "routes_computed",
    "generation_pushed",
    "generation_acknowledged",
    "generation_incomplete",
    "restoration_finished",
)


def test_the_first_programs_go_out_in_one_round(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    said = bench.lead()
    count = len(bench.agents)
    assert [mark.event for mark in kit.marks(said, *PUSHING)] == [
        "routes_computed",
        "generation_pushed",
        "generation_acknowledged",
        "restoration_finished",
    ]
    assert kit.marks(said, "generation_pushed") == [
        Mark("generation_pushed", {"epoch": 1, "generation": 1, "nodes": count})
    ]
    assert set(bench.programs) == bench.agents


def test_a_burst_of_failures_is_one_recomputation(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """Two links that fail 4 ms apart, each reported by both ends, cost one recomputation."""
    bench = kit.bench(fat_tree)
    bench.lead()
    one, other = bench.link("core0-0", "pod0-agg0"), bench.link("core0-1", "pod1-agg0")
    failed_at_ns = bench.now_ns
    said = bench.fail(one) + bench.wait(4 * MS) + bench.fail(other)
    assert kit.marks(said) == [Mark("link_down_adjudicated", {"link": link}) for link in (one, other)]
    assert kit.pushed(said) == []
    assert bench.core.next_wakeup_ns() == failed_at_ns + 14 * MS
    said = bench.wait(1 * SECOND)
    assert len(kit.marks(said, "routes_computed")) == 1


def test_the_second_ends_late_fact_costs_nothing(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.hear(bench.fact("core0-0", link))
    assert len(kit.pushed(bench.wait(200 * MS))) > 0
    said = bench.hear(bench.fact("pod0-agg0", link)) + bench.wait(200 * MS)
    assert kit.marks(said) == []
    assert kit.pushed(said) == []


def test_a_failure_that_only_removes_goes_in_one_round(kit) -> None:  # type: ignore[no-untyped-def]
    """One of two parallel cables: everybody keeps a next hop, so nobody has to wait for anybody."""
    bench = kit.bench(generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "cables": 2}))
    bench.lead()
    said = bench.fail(bench.link("leaf0", "spine0")) + bench.wait(100 * MS)
    assert [mark.fields["rounds"] for mark in kit.marks(said, "routes_computed")] == [1]
    assert [mark.event for mark in kit.marks(said, *PUSHING)] == [
        "routes_computed",
        "generation_pushed",
        "generation_acknowledged",
        "restoration_finished",
    ]


def test_a_node_that_loses_its_last_next_hop_does_so_after_its_users_have_left(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """core0-0 can no longer reach pod0; until nobody sends it what goes there, it keeps what it has."""
    bench = kit.bench(fat_tree)
    bench.lead()
    said = bench.fail(bench.link("core0-0", "pod0-agg0")) + bench.wait(100 * MS)
    rounds: dict[int, dict[str, set[str]]] = {}
    for program in kit.pushed(said):
        served = {route.destination for route in program.routes if program.groups[route.group].members}
        rounds.setdefault(program.generation, {})[program.node] = served
    (_, first), (_, second) = sorted(rounds.items())
    assert {"@pod0-edge0", "@pod0-edge1"} <= first["core0-0"]
    assert list(second) == ["core0-0"]
    assert not {"@pod0-edge0", "@pod0-edge1"} & second["core0-0"]


def test_a_program_that_stays_the_same_is_not_pushed(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    before = {node: program.digest for node, program in bench.programs.items()}
    said = bench.fail(bench.link("core0-0", "pod0-agg0")) + bench.wait(100 * MS)
    changed = {program.node for program in kit.pushed(said)}
    assert changed == {node for node, program in bench.programs.items() if program.digest != before[node]}
    assert not changed & {node.id for node in fat_tree.endpoints}
    assert 0 < len(changed) < len(fat_tree.switches)


def test_a_links_return_goes_in_several_rounds_the_far_end_first(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """Towards pod0's classes core0-0 sends down the returned link. The pods that come to use core0-0 get that in a later round."""
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)

    def uses(program, destination, far_end):  # type: ignore[no-untyped-def]
        ports = {port.port: port.far_end for port in program.ports}
        group = next((route.group for route in program.routes if route.destination == destination), None)
        return group is not None and far_end in {ports[member.port] for member in program.groups[group].members}

    rounds: list[dict[str, object]] = []
    bench.mute = set(bench.agents)
    said = bench.repair(link) + bench.wait(20 * MS)
    while bench.core.next_wakeup_ns() is not None and kit.pushed(said):
        rounds.append({program.node: program for program in kit.pushed(said)})
        said = []
        for program in rounds[-1].values():
            bench.programs[program.node] = program
            said += bench.hear(bench.ack(program))
    assert len(rounds) > 1
    destination = "@pod0-edge0"
    first_far = next(
        i
        for i, sent in enumerate(rounds)
        if uses(sent.get("core0-0") or bench.topics["core0-0"], destination, "pod0-agg0")
    )
    first_near = next(
        i for i, sent in enumerate(rounds) if "pod1-agg0" in sent and uses(sent["pod1-agg0"], destination, "core0-0")
    )
    assert first_far < first_near


def test_a_round_waits_for_every_present_agent(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)

    bench.mute = {"core0-0"}
    said = bench.repair(link) + bench.wait(100 * MS)
    first = kit.pushed(said)
    assert "core0-0" in {program.node for program in first}
    assert [mark.event for mark in kit.marks(said, *PUSHING)] == ["routes_computed", "generation_pushed"]

    bench.mute = set()
    late = next(program for program in first if program.node == "core0-0")
    bench.programs["core0-0"] = late
    said = bench.hear(bench.ack(late))
    assert [mark.event for mark in kit.marks(said)][:2] == ["generation_acknowledged", "generation_pushed"]
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_unanswered_programs_are_sent_again_and_then_named_and_later_rounds_wait(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)

    bench.mute = {"core0-0"}
    bench.repair(link)
    said = bench.wait(10 * MS)
    generation = kit.marks(said, "generation_pushed")[0].fields["generation"]
    again = [[program.node for program in kit.pushed(bench.wait(800 * MS))] for _ in range(2)]
    assert again == [["core0-0"], ["core0-0"]]
    said = bench.wait(800 * MS)
    assert kit.marks(said) == [
        Mark(
            "generation_incomplete",
            {"epoch": 1, "generation": generation, "missing": ["core0-0"], "missing_count": 1},
        )
    ]
    said = bench.wait(60 * SECOND)
    assert kit.marks(said) + kit.pushed(said) == [], "held: nothing more is tried by time alone"

    bench.mute = set()
    said = bench.hear(bench.presence("core0-0", incarnation=2))
    assert kit.pushed(said)[0].node == "core0-0"
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_answers_that_keep_coming_put_the_retry_off(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """A thousand agents answer one after the other: nobody is late while the queue moves."""
    bench = kit.bench(leaf_spine)
    bench.mute = set(bench.agents)
    first = kit.pushed(bench.lead())
    for program in first[:-1]:
        assert kit.pushed(bench.wait(700 * MS)) == []
        bench.programs[program.node] = program
        bench.hear(bench.ack(program))
    assert [program.node for program in kit.pushed(bench.wait(800 * MS))] == [first[-1].node]


def test_what_is_left_is_planned_around_an_agent_that_goes(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    bench.mute = {"core0-0"}
    bench.fail(bench.link("core0-0", "pod0-agg0"))
    assert kit.marks(bench.wait(20 * MS), "restoration_finished") == []
    said = bench.hear(bench.presence("core0-0", "gone")) + bench.wait(20 * MS)
    events = [mark.event for mark in kit.marks(said)]
    assert (events[0], events[-1]) == ("routes_computed", "restoration_finished")


def test_agents_that_come_back_in_a_crowd_are_one_computation(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """As after a broker's restart: on a large fabric a computation for each would outlast the crowd."""
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("pod0-agg0", "pod0-edge0")
    bench.fail(link)
    bench.wait(20 * MS)
    crowd = sorted(node for node in bench.agents if "core" in node or "agg" in node)
    bench.mute = set(crowd)
    for node in crowd:
        bench.hear(bench.presence(node, "gone"))
    assert kit.marks(bench.repair(link) + bench.wait(100 * MS))[-1].event == "generation_incomplete"

    bench.mute = set()
    said = []
    for node in crowd:
        said += bench.hear(bench.presence(node, incarnation=2)) + bench.wait(1 * MS)
    said += bench.wait(100 * MS)
    assert len(kit.marks(said, "routes_computed")) == 1
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_an_old_last_will_takes_no_new_agent_away(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    bench.hear(bench.presence("core0-0", incarnation=5))
    bench.mute = {"core0-0"}
    bench.fail(bench.link("core0-0", "pod0-agg0"))
    bench.wait(20 * MS)
    assert bench.hear(bench.presence("core0-0", "gone", incarnation=4)) == []


def test_a_gone_agent_gets_its_program_and_is_not_waited_for(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    bench.mute = {"core0-0"}
    bench.hear(bench.presence("core0-0", "gone"))
    said = bench.fail(bench.link("core0-0", "pod0-agg0")) + bench.wait(20 * MS)
    assert "core0-0" in {program.node for program in kit.pushed(said)}
    assert kit.marks(said)[-1].event == "restoration_finished"

    bench.mute = set()
    said = bench.hear(bench.presence("core0-0", incarnation=2))
    assert [program.node for program in kit.pushed(said)] == ["core0-0"]
    assert bench.programs["core0-0"].digest == bench.topics["core0-0"].digest
    assert bench.wait(1 * SECOND) != [], "the leader's refresh goes on"
    assert kit.pushed(bench.wait(10 * SECOND)) == []


def test_a_node_that_is_cut_off_is_not_waited_for(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """A dead switch: its neighbours call all its links down, its last will comes seconds later."""
    bench = kit.bench(fat_tree)
    bench.lead()
    bench.mute = {"pod0-agg0"}
    for link in fat_tree.links_of["pod0-agg0"]:
        bench.hear(bench.fact(link.far_end("pod0-agg0").node, link.id))
    said = bench.wait(50 * MS)
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_new_evidence_during_the_rounds_continues_from_what_is_really_installed(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """
    A round of a link's return is under way and one agent has not answered; another link fails.

    The new generation supersedes the old one, its numbers go on, and its first round includes the agent in doubt.
    """
    bench = kit.bench(fat_tree)
    bench.lead()
    link, other = bench.link("core0-0", "pod0-agg0"), bench.link("core1-1", "pod3-agg1")
    bench.fail(link)
    bench.wait(100 * MS)
    bench.mute = {"core0-0"}
    bench.repair(link)
    said = bench.wait(20 * MS)
    last = kit.pushed(said)[-1].generation
    in_doubt = next(program for program in kit.pushed(said) if program.node == "core0-0")

    bench.mute = set()
    said = bench.fail(other) + bench.wait(100 * MS)
    first = kit.marks(said, "generation_pushed")[0].fields["generation"]
    assert first == last + 1
    assert "core0-0" in {program.node for program in kit.pushed(said) if program.generation == first}
    assert kit.marks(said)[-1].event == "restoration_finished"
    # The answer to the superseded one comes late and changes nothing.
    assert bench.hear(bench.ack(in_doubt)) == []

    fresh = kit.bench(fat_tree)
    fresh.lead()
    fresh.fail(other)
    fresh.wait(100 * MS)
    for node, program in bench.programs.items():
        wanted = fresh.programs[node]
        assert (program.routes, program.groups, program.armed) == (wanted.routes, wanted.groups, wanted.armed)


def test_a_program_in_doubt_is_overtaken_even_if_the_agent_is_to_run_what_it_ran(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """
    A link returns, core0-0 is sent what uses it and does not answer, the link fails again.

    Core0-0 is to run what it acknowledged last. It may run the other by now, so it gets that again, in a higher generation.
    """
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link, 1)
    bench.wait(100 * MS)
    before = bench.programs["core0-0"]
    bench.mute = {"core0-0"}
    bench.repair(link, 2)
    bench.wait(20 * MS)
    in_doubt = bench.topics["core0-0"]
    assert in_doubt.digest != before.digest

    said = bench.fail(link, 3) + bench.wait(20 * MS)
    again = [program for program in kit.pushed(said) if program.node == "core0-0"]
    assert [program.routes for program in again] == [before.routes]
    assert again[0].generation > in_doubt.generation
    assert kit.marks(said)[-1].event == "generation_pushed", "its answer is waited for"


def test_a_program_that_was_not_installed_is_told_and_sent_again(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.mute = {"leaf0"}
    program = next(program for program in kit.pushed(bench.lead()) if program.node == "leaf0")
    said = bench.hear(bench.ack(program, "failed", reason="no room in the table"))
    assert [(mark.event, mark.fields["reason"]) for mark in kit.marks(said)] == [
        ("program_not_installed", "no room in the table")
    ]
    assert [program.node for program in kit.pushed(bench.wait(800 * MS))] == ["leaf0"]


def test_a_lost_acknowledgement_is_made_good_by_the_next_report(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.mute = {"leaf0"}
    program = next(program for program in kit.pushed(bench.lead()) if program.node == "leaf0")
    said = bench.hear(bench.health("leaf0").model_copy(update={"installed": kit.installed(program)}))
    assert [mark.event for mark in kit.marks(said)] == ["generation_acknowledged", "restoration_finished"]


def test_an_agent_that_lost_its_state_is_given_its_program_again(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    kept = bench.programs.pop("leaf0")
    said = bench.hear(bench.presence("leaf0", incarnation=2))
    assert [program.node for program in kit.pushed(said)] == ["leaf0"]
    assert bench.programs["leaf0"].digest == kept.digest


def test_time_without_a_bus_counts_against_nobody(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.mute = {"leaf0"}
    bench.lead()
    bench.handle(BusLost())
    assert bench.wait(60 * SECOND) == []
    bench.mute = set()
    bench.handle(BusConnected())
    said = bench.wait(500 * MS)
    assert kit.marks(said, "generation_incomplete") == []
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_an_answer_of_a_node_that_the_fabric_lacks_is_told(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    answer = bench.ack(bench.programs["leaf0"]).model_copy(update={"sender": "leaf77"})
    assert bench.hear(answer) == [
        Mark("acknowledgement_refused", {"reporter": "leaf77", "reason": "the fabric has no such node"})
    ]


def test_without_protection_nothing_is_armed(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine, timers=ControllerTimers(is_protecting=False))
    bench.lead()
    assert not any(program.armed for program in bench.programs.values())
    armed = kit.bench(leaf_spine)
    armed.lead()
    assert any(program.armed for program in armed.programs.values())


def test_programs_are_sent_again_in_the_order_of_the_nodes(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.mute = set(bench.agents)
    bench.lead()
    assert [program.node for program in kit.pushed(bench.wait(800 * MS))] == sorted(bench.agents)


def test_no_round_starts_while_it_is_in_doubt_who_leads(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """The last answer to a round comes while an agent's word of a higher epoch is looked into: the next round waits."""
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)
    bench.mute = {"core0-0"}
    bench.repair(link)
    bench.wait(20 * MS)
    late = bench.topics["core0-0"]

    bench.hear(bench.health("pod3-agg1").model_copy(update={"epoch": 4}))
    bench.mute, bench.programs["core0-0"] = set(), late
    assert kit.pushed(bench.hear(bench.ack(late)) + bench.wait(2 * SECOND)) == []
    said = bench.wait(1 * SECOND)
    assert {program.epoch for program in kit.pushed(said)} == {5}
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_a_destination_held_for_a_gone_agent_is_planned_anew_when_it_returns(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """The cable is back while the agent of its upper end is gone: nobody sends over that switch until its agent is there."""
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("pod0-agg0", "pod0-edge0")
    bench.fail(link)
    bench.wait(20 * MS)
    bench.mute = {"pod0-agg0"}
    bench.hear(bench.presence("pod0-agg0", "gone"))
    said = bench.repair(link) + bench.wait(20 * MS)
    assert kit.marks(said)[-1].event == "generation_incomplete"
    assert kit.marks(said)[-1].fields["missing"] == ["pod0-agg0"]

    bench.mute = set()
    said = bench.hear(bench.presence("pod0-agg0", incarnation=2)) + bench.wait(20 * MS)
    assert kit.marks(said)[-1].event == "restoration_finished"
    assert "pod0-agg0" in {program.node for program in kit.pushed(said)}


def all_at_once(old, new, fabric, pinned):  # type: ignore[no-untyped-def]
    """Return a plan as somebody would make it who thinks that order does not matter."""
    return [{node: program for node, program in new.items() if old[node].digest != program.digest}]


def test_a_plan_that_could_lose_packets_is_withheld_and_not_tried_again(  # type: ignore[no-untyped-def]
    kit, fat_tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cable is back and nothing is lost without it. Pushed all at once, others could send by core0-0 before it knows the way."""
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)
    runs = dict(bench.programs)
    with monkeypatch.context() as patched:
        patched.setattr(programming, "plan_rounds", all_at_once)
        said = bench.repair(link) + bench.wait(100 * MS)
        assert [mark.event for mark in kit.marks(said)][-2:] == ["routes_computed", "push_withheld"]
        (withheld,) = kit.marks(said, "push_withheld")
        assert {name: withheld.fields[name] for name in ("round", "rounds", "finding")} == {
            "round": 1,
            "rounds": 1,
            "finding": "interruption",
        }
        assert withheld.fields["destinations"] == ["@pod0-edge0", "@pod0-edge1"]
        assert withheld.fields["destination_count"] == 2
        assert kit.pushed(said) == []
        said = bench.wait(60 * SECOND)
        assert kit.marks(said) + kit.pushed(said) == [], "held: nothing more is tried by time alone"
        said = bench.hear(bench.presence("pod3-edge1-host0", incarnation=2)) + bench.wait(60 * SECOND)
        assert [mark.event for mark in kit.marks(said)] == ["routes_computed", "push_withheld"]
    assert bench.programs == runs

    said = bench.hear(bench.presence("pod3-edge1-host0", incarnation=3)) + bench.wait(100 * MS)
    assert kit.marks(said)[-1].event == "restoration_finished"
    assert bench.hear(bench.presence("pod3-edge1-host0", incarnation=4)) + bench.wait(500 * MS) == []


def test_a_withheld_plan_gives_way_to_the_next_news(kit, fat_tree, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    bench.lead()
    link = bench.link("core0-0", "pod0-agg0")
    bench.fail(link)
    bench.wait(100 * MS)
    with monkeypatch.context() as patched:
        patched.setattr(programming, "plan_rounds", all_at_once)
        bench.repair(link)
        bench.wait(100 * MS)
    said = bench.fail(bench.link("core1-1", "pod3-agg1")) + bench.wait(100 * MS)
    assert kit.marks(said, "push_withheld") == []
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_what_repairs_something_is_pushed_though_it_is_not_perfect(  # type: ignore[no-untyped-def]
    kit, fat_tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """core0-0 could forget pod0 before the others have left it; but something is broken, and nothing loops."""
    bench = kit.bench(fat_tree)
    bench.lead()
    monkeypatch.setattr(programming, "plan_rounds", all_at_once)
    said = bench.fail(bench.link("core0-0", "pod0-agg0")) + bench.wait(100 * MS)
    assert kit.marks(said, "push_withheld") == []
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_the_worst_of_what_is_found_is_named() -> None:
    loop, valley = Loop("@d", ("a", "b")), Valley("@d", "c", "p1")
    lost = Unreached("@e", ("x",))
    clean = RoundVerdict()

    def flaw(*rounds: RoundVerdict, is_repair: bool = False) -> Flaw | None:
        return Flaw.first_of(PushVerdict(rounds, is_repair))

    assert flaw(clean) is None
    assert flaw(clean, RoundVerdict((loop,), (valley,), (lost,))) == Flaw(2, "loop", ("@d",), ("a", "b"))
    assert flaw(RoundVerdict((), (valley,), (lost,))) == Flaw(1, "valley", ("@d",), ("c",))
    assert flaw(RoundVerdict((), (), (lost,))) == Flaw(1, "interruption", ("@e",), ("x",))
    assert flaw(RoundVerdict((), (), (lost,)), is_repair=True) is None
