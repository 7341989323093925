"""Drains: what they are, when they are refused, what routes may use with them, and what operators are told."""

from itertools import count
from random import Random

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.messages import CONTROLLER, Drain, DrainAnswer, DrainRequest, Drains, Program
from erfs.paths import Topology
from erfs.ports import Mark, Publish
from erfs.units import MINUTE, MS, SECOND
from erfs_controller import programming
from erfs_controller.core import PersistDrains
from erfs_controller.drain import DrainList, Use, links_of

FLOOR_PPM = 750_000
_numbers = count(1)


@pytest.fixture(scope="module")
def four_spines() -> Fabric:
    """Four leaves in two MLAG pairs, four spines, two hosts a leaf, each attached to both leaves of a pair."""
    return generate("leaf-spine", {"leaves": 4, "spines": 4, "hosts_per_leaf": 2, "attachments": 2})


def request(target: str, action: str = "drain", **fields: object) -> DrainRequest:
    said = {"sender": "operator", "request": f"{next(_numbers):032x}", "action": action, "target": target}
    return DrainRequest.model_validate(said | fields)


def drain(kind: str, target: str, **fields: object) -> Drain:
    said = {"target_kind": kind, "target": target, "strength": "hard", "by": "operator", "begins_wall_ns": 0}
    return Drain.model_validate(said | fields)


def drained(fabric: Fabric, *drains: Drain) -> DrainList:
    found = DrainList(Topology(fabric), FLOOR_PPM)
    for one in drains:
        found.begin(one)
    return found


# --- targets -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("spine1", "node:spine1"),
        ("node:spine1", "node:spine1"),
        ("rack1", "rack:rack1"),
        ("power:rack1", "srlg:power:rack1"),
        ("leaf0 - spine1", "link:{link}"),
        ("{end}", "link:{link}"),
        ("{link}", "link:{link}"),
    ],
)
def test_a_target_may_be_spelled_as_operators_do(four_spines: Fabric, target: str, name: str) -> None:
    link = next(one for one in four_spines.trunks if {one.a.node, one.b.node} == {"leaf0", "spine1"})
    names = {"link": link.id, "end": link.end_at(NodeId("spine1")).id}

    found = drained(four_spines).decide(request(target.format(**names), strength="soft"), frozenset(), 0).drain

    assert found is not None
    assert found.name == name.format(**names)


def test_a_name_that_nothing_has_is_refused_with_the_nearest(four_spines: Fabric) -> None:
    decision = drained(four_spines).decide(request("spin1"), frozenset(), 0)

    assert decision.reasons == (
        f'"spin1" is no node, link, shared-risk group or rack of fabric "{four_spines.name}" (did you mean "spine1"?)',
    )
    assert decision.drain is None


# --- the floor ----------------------------------------------------------------------------------------------------------
def test_one_of_four_spines_may_go_and_a_second_may_not(four_spines: Fabric) -> None:
    drains = drained(four_spines)
    first = drains.decide(request("spine0"), frozenset(), 0)
    assert first.reasons == ()
    assert first.plan is not None
    assert [(share.of, share.ppm) for share in first.plan.shares] == [("paths", 750_000), ("capacity", 750_000)]
    assert first.drain is not None
    drains.begin(first.drain)

    second = drains.decide(request("spine1"), frozenset(), 0)

    assert second.reasons == (
        "leaf0 would keep 50 % of its paths towards @leaf2+leaf3, less than the path floor of 75 %",
        "leaf0 would keep 50 % of its capacity towards @leaf2+leaf3, less than the path floor of 75 %",
    )


def test_what_has_failed_already_counts_against_the_floor(four_spines: Fabric) -> None:
    """The check is on the fabric as it is now: one spine has lost its power."""
    down = links_of(four_spines, "node", "spine3")

    assert drained(four_spines).decide(request("spine0"), frozenset(), 0).reasons == ()
    assert len(drained(four_spines).decide(request("spine0"), down, 0).reasons) == 2


def test_what_the_drain_does_not_make_worse_does_not_count_against_it(four_spines: Fabric) -> None:
    """Two spines are dead: everybody is at half already, and draining one of them takes nothing more."""
    down = links_of(four_spines, "node", "spine3") | links_of(four_spines, "node", "spine2")

    assert drained(four_spines).decide(request("spine3"), down, 0).reasons == ()


def test_a_leaf_whose_hosts_have_another_may_go_and_its_partner_may_not(four_spines: Fabric) -> None:
    """Hosts keep their other leaf; with that one gone too they would be cut off."""
    drains = drained(four_spines)
    first = drains.decide(request("rack0"), frozenset(), 0)
    assert first.reasons == ()
    assert first.plan is not None
    assert (first.plan.endpoint_count, first.plan.cut_count) == (4, 0)
    assert [(share.of, share.ppm) for share in first.plan.own_shares] == [("paths", 500_000)]
    assert first.drain is not None
    drains.begin(first.drain)

    (reason,) = drains.decide(request("leaf1"), frozenset(), 0).reasons

    assert reason == "it would take the last path of 44 demands, of leaf0-host0, leaf0-host1, leaf1-host0, leaf1-host1"


def test_a_reason_overrides_the_floor_and_is_kept(four_spines: Fabric) -> None:
    drains = drained(four_spines, drain("node", "leaf0"))

    decision = drains.decide(request("leaf1", force="the row is replaced"), frozenset(), 0)

    assert decision.reasons == ()
    assert len(decision.overridden) == 1
    assert decision.drain is not None
    assert (decision.drain.forced_because, decision.drain.may_cut) == ("the row is replaced", True)


def test_a_reason_that_was_not_needed_is_not_kept(four_spines: Fabric) -> None:
    decision = drained(four_spines).decide(request("spine0", force="just in case"), frozenset(), 0)

    assert decision.drain is not None
    assert (decision.drain.forced_because, decision.drain.may_cut) == ("", False)


def test_a_soft_drain_takes_nobodys_last_path(four_spines: Fabric) -> None:
    decision = drained(four_spines, drain("node", "leaf0")).decide(request("leaf1", strength="soft"), frozenset(), 0)

    assert decision.reasons == ()


def test_an_undrain_is_never_refused_but_for_what_is_not_drained(four_spines: Fabric) -> None:
    drains = drained(four_spines, drain("node", "leaf0"))

    assert drains.decide(request("leaf0", "undrain"), frozenset(), 0).drain == drain("node", "leaf0")
    assert drains.decide(request("leaf1", "undrain"), frozenset(), 0).reasons == (
        'node "leaf1" is not drained (drained: node:leaf0)',
    )


def test_what_a_new_fabric_file_lacks_can_be_undrained(four_spines: Fabric, leaf_spine: Fabric) -> None:
    drains = drained(four_spines, drain("node", "spine3"))
    drains.replace_fabric(Topology(leaf_spine))

    assert drains.use(frozenset()) == Use(frozenset())
    assert drains.decide(request("spine3", "undrain"), frozenset(), 0).drain == drain("node", "spine3")


# --- what routes may use ------------------------------------------------------------------------------------------------
def test_hard_is_unusable_and_soft_is_shunned(four_spines: Fabric) -> None:
    spine0, spine1 = (links_of(four_spines, "node", spine) for spine in ("spine0", "spine1"))

    assert drained(four_spines, drain("node", "spine0")).use(frozenset()) == Use(spine0)
    assert drained(four_spines, drain("node", "spine0", strength="soft")).use(spine1) == Use(spine1, spine0)


def test_hosts_of_a_softly_drained_leaf_use_their_other_leaf_while_they_have_it(four_spines: Fabric) -> None:
    drains = drained(four_spines, drain("node", "leaf0", strength="soft"))
    access = {link for link in links_of(four_spines, "node", "leaf0") if four_spines.is_access(four_spines.links[link])}
    host = NodeId("leaf1-host0")
    other = {link.id for link in four_spines.access_links[host] if link.id not in access}

    assert drains.use(frozenset()).unusable == access
    assert (
        drains.use(frozenset(other)).unusable == access - {link.id for link in four_spines.access_links[host]} | other
    )


def test_hard_drains_carry_what_nothing_else_can(four_spines: Fabric) -> None:
    """All other spines die during the maintenance of one: better through it than nowhere."""
    drains = drained(four_spines, drain("node", "spine0"))
    dead = frozenset[str]().union(*(links_of(four_spines, "node", f"spine{number}") for number in (1, 2)))
    rest = links_of(four_spines, "node", "spine3")
    spine0 = links_of(four_spines, "node", "spine0")

    assert drains.use(dead) == Use(dead | spine0)  # type: ignore[arg-type]
    assert drains.use(dead | rest) == Use(dead | rest, spine0, is_yielding=True)  # type: ignore[arg-type,operator]
    assert drains.use(dead) == Use(dead | spine0)  # type: ignore[arg-type]


def test_a_drain_that_was_forced_to_cut_somebody_off_does_not_yield(four_spines: Fabric) -> None:
    cutting = drain("node", "leaf1", forced_because="the row is replaced", may_cut=True)
    drains = drained(four_spines, drain("node", "leaf0"), cutting)

    assert not drains.use(frozenset()).is_yielding


# --- time ---------------------------------------------------------------------------------------------------------------
def test_a_drain_ends_when_its_time_is_up(four_spines: Fabric) -> None:
    brief = drain("node", "spine0", ends_wall_ns=5)
    drains = drained(four_spines, brief, drain("node", "leaf0"))

    assert drains.next_end_wall_ns() == 5
    assert drains.over(4) == ()
    assert drains.over(5) == (brief,)


def test_the_higher_revision_counts(four_spines: Fabric) -> None:
    drains = drained(four_spines, drain("node", "spine0"))

    assert not drains.adopt(Drains(sender=CONTROLLER, revision=1))
    assert drains.drains == (drain("node", "spine0"),)
    assert drains.adopt(Drains(sender=CONTROLLER, revision=2, drains=(drain("node", "leaf0"),)))
    assert drains.drains == (drain("node", "leaf0"),)


# --- the controller -----------------------------------------------------------------------------------------------------
def told(commands: list[object]) -> list[tuple[str, tuple[str, ...]]]:
    answers = [command.message for command in commands if isinstance(command, Publish)]
    return [(answer.state, answer.reasons) for answer in answers if isinstance(answer, DrainAnswer)]


def carried_by(programs: dict[NodeId, Program], node: NodeId, far_end: str) -> bool:
    """Return whether any route of *node* leads to *far_end*."""
    program = programs[node]
    ports = {binding.port for binding in program.ports if binding.far_end == far_end}
    used = {group.id for group in program.groups if ports & {member.port for member in group.members}}
    return bool(used & {route.group for route in program.routes})


def test_a_drained_spine_is_taken_from_all_leaves_and_given_back(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    said = bench.hear(request("spine0")) + bench.wait(100 * MS)

    assert told(said)[0] == ("accepted", ())
    assert set(told(said)[1:-1]) == {("moving", ())}
    assert told(said)[-1] == ("done", ())
    assert kit.marks(said, "drain_begun") == [
        Mark("drain_begun", {"target": "node:spine0", "strength": "hard", "by": "operator", "overridden": []})
    ]
    leaves = [node.id for node in four_spines.switches if node.id.startswith("leaf")]
    assert [leaf for leaf in leaves if carried_by(bench.programs, leaf, "spine0")] == []

    said = bench.hear(request("spine0", "undrain")) + bench.wait(100 * MS)

    assert told(said)[-1] == ("done", ())
    assert [leaf for leaf in leaves if not carried_by(bench.programs, leaf, "spine0")] == []


def test_a_softly_drained_spine_carries_nothing_until_nothing_else_remains(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("spine0", strength="soft"))
    bench.wait(100 * MS)
    leaves = [node.id for node in four_spines.switches if node.id.startswith("leaf")]
    assert [leaf for leaf in leaves if carried_by(bench.programs, leaf, "spine0")] == []

    for number in (1, 2, 3):
        bench.fail(bench.link("leaf0", f"spine{number}"))
    bench.wait(100 * MS)

    assert [leaf for leaf in leaves if carried_by(bench.programs, leaf, "spine0")] == ["leaf0"]


def test_rounds_that_would_lose_something_are_withheld_for_what_is_drained_works_still(  # type: ignore[no-untyped-def]
    kit, four_spines, monkeypatch
) -> None:
    """A drain all at once: nothing is broken, so the verifier has to see that packets on the old way are lost."""
    monkeypatch.setattr(programming, "plan_rounds", lambda before, after, fabric, pinned: [dict(after)])
    bench = kit.bench(four_spines)
    bench.lead()

    said = bench.hear(request("spine0")) + bench.wait(SECOND)

    (mark,) = kit.marks(said, "push_withheld")
    assert mark.fields["finding"] == "interruption"
    state, (reason,) = told(said)[-1]
    assert (state, reason.partition(", ")[2]) == ("waiting", "for what its round 1 might bring: interruption")


def test_a_dry_run_tells_and_does_nothing(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()

    said = bench.hear(request("spine0", is_dry_run=True)) + bench.wait(SECOND)

    assert told(said) == [("planned", ())]
    assert kit.marks(said) == []
    assert kit.pushed(said) == []


def test_a_refusal_is_journalled_with_its_reasons(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()

    said = bench.hear(request("spine0"))

    ((state, reasons),) = told(said)
    assert state == "refused"
    assert kit.marks(said) == [
        Mark("drain_refused", {"action": "drain", "target": "spine0", "by": "operator", "reasons": list(reasons)})
    ]


def test_a_forced_drain_that_cuts_hosts_off_passes_the_guard_and_says_why(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The operator's word explains the withdrawal; nobody has to confirm it a second time."""
    bench = kit.bench(leaf_spine)
    bench.lead()

    said = bench.hear(request("leaf0", force="it burns")) + bench.wait(SECOND)

    assert told(said)[-1] == ("done", ())
    assert kit.marks(said, "push_refused") == []
    assert kit.marks(said, "drain_begun")[0].fields["forced_because"] == "it burns"


def test_a_drain_is_on_disk_before_anybody_is_told(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()

    said = bench.hear(request("spine0"))

    persisted = next(index for index, command in enumerate(said) if isinstance(command, PersistDrains))
    published = [index for index, command in enumerate(said) if isinstance(command, Publish)]
    assert persisted < min(published)
    assert [one.name for one in said[persisted].drains.drains] == ["node:spine0"]


def test_a_drain_undoes_itself_when_its_time_is_up(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("spine0", lasts_ns=1 * MINUTE))
    bench.wait(59 * SECOND)
    assert not carried_by(bench.programs, NodeId("leaf0"), "spine0")

    said = bench.wait(2 * SECOND)

    assert kit.marks(said, "drain_ended") == [
        Mark("drain_ended", {"target": "node:spine0", "because": "its time is up"})
    ]
    assert carried_by(bench.programs, NodeId("leaf0"), "spine0")


def test_a_drain_ends_at_its_instant_and_not_when_something_else_happens(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    begun_ns = bench.now_ns
    bench.hear(request("spine0", lasts_ns=400 * MS))

    assert kit.marks(bench.advance(begun_ns + 400 * MS - 1), "drain_ended") == []
    assert len(kit.marks(bench.advance(begun_ns + 400 * MS), "drain_ended")) == 1


def test_a_restarted_controller_knows_what_is_drained_from_its_disk_or_from_the_bus(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    """It changes no route; and the second one, which has no disk, is told by what is retained."""
    bench = kit.bench(four_spines)
    bench.lead()
    said = bench.hear(request("spine0")) + bench.wait(100 * MS)
    (kept,) = [command.drains for command in said if isinstance(command, PersistDrains)]

    by_disk = bench.succeed(stored_drains=kept)
    assert kit.pushed(by_disk.lead()) == []

    by_bus = bench.succeed(controller_id="three")
    by_bus.meet()
    assert by_bus.hear(kept, is_retained=True)[0] == PersistDrains(kept.model_copy(update={"epoch": 0, "seq": 1}))
    said = by_bus.wait(by_bus.timers.discovery_ns)
    assert kit.pushed(said) == []
    assert kit.marks(said, "drains_restored") == [Mark("drains_restored", {"drains": ["node:spine0"]})]


def test_what_is_retained_counts_even_if_it_comes_late_and_takes_nothing_back(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    """A successor without a disk, on a slow bus, has accepted another drain meanwhile: both hold."""
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("leaf0"))
    left = Drains(sender=CONTROLLER, epoch=1, revision=7, drains=(drain("node", "spine0"),))

    said = bench.hear(left, is_retained=True) + bench.wait(100 * MS)

    assert kit.marks(said, "drains_restored") == [Mark("drains_restored", {"drains": ["node:leaf0", "node:spine0"]})]
    assert [command.drains.revision for command in said if isinstance(command, PersistDrains)] == [8]
    assert not carried_by(bench.programs, NodeId("leaf3"), "spine0")
    assert not carried_by(bench.programs, NodeId("spine1"), "leaf0")
    assert [command for command in bench.hear(left, is_retained=True) if not isinstance(command, Mark)] == []


def test_a_failure_during_a_drain_is_healed_and_its_return_does_not_undrain(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("spine0"))
    bench.wait(100 * MS)
    link = bench.link("leaf0", "spine1")
    bench.fail(link)
    bench.wait(100 * MS)
    assert [carried_by(bench.programs, NodeId("leaf0"), f"spine{number}") for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]

    bench.repair(link)
    bench.wait(100 * MS)

    assert [carried_by(bench.programs, NodeId("leaf0"), f"spine{number}") for number in range(4)] == [
        False,
        True,
        True,
        True,
    ]


def test_a_drained_link_that_fails_and_returns_moves_nothing(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    """Whoever services it pulls its cables."""
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("spine0"))
    bench.wait(100 * MS)
    link = bench.link("leaf0", "spine0")

    said = bench.fail(link) + bench.wait(SECOND) + bench.repair(link) + bench.wait(SECOND)

    assert kit.pushed(said) == []


def test_what_keeps_a_drain_from_being_done_is_told(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    bench.mute = {NodeId("leaf0")}

    said = bench.hear(request("spine0")) + bench.wait(5 * SECOND)

    state, (reason,) = told(said)[-1]
    assert state == "waiting"
    assert reason.startswith("1 agents have not acknowledged generation ")


def test_it_is_not_done_while_an_agent_is_away_whose_node_may_still_send_through_it(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    """Nobody waits for its acknowledgement, but whoever pulled the cable now would cost its hosts a quarter of their packets."""
    bench = kit.bench(four_spines)
    bench.lead()
    bench.mute = {NodeId("leaf1"), NodeId("spine3")}
    for node in sorted(bench.mute):
        bench.hear(bench.presence(node, "gone"))

    said = bench.hear(request("spine0")) + bench.wait(5 * SECOND)

    assert told(said)[-1] == ("waiting", ("agents are away whose nodes may still send through it: leaf1",))
    assert [state for state, _ in told(said)].count("waiting") == 1

    bench.mute = set()
    said = bench.hear(bench.presence("leaf1", incarnation=2)) + bench.wait(SECOND)
    assert told(said)[-1] == ("done", ())


def test_an_undrain_needs_nobody_who_is_away(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.lead()
    bench.hear(request("spine0"))
    bench.wait(SECOND)
    bench.mute = {NodeId("leaf1")}
    bench.hear(bench.presence("leaf1", "gone"))

    said = bench.hear(request("spine0", "undrain")) + bench.wait(5 * SECOND)

    assert told(said)[-1] == ("done", ())


def test_only_who_leads_answers(kit, four_spines) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(four_spines)
    bench.meet()

    assert bench.hear(request("spine0")) == []


@pytest.mark.parametrize("seed", range(5))
def test_random_drains_undrains_and_failures_never_leave_a_push_withheld_or_refused(kit, four_spines, seed) -> None:  # type: ignore[no-untyped-def]
    """Every generation passes the verifier's and the guard's judgement, and in the end all is as it was built."""
    rng = Random(seed)
    bench = kit.bench(four_spines)
    bench.lead()
    first = dict(bench.programs)
    targets = ["spine0", "spine1", "spine2", "spine3", "leaf0", "leaf3", "leaf0 - spine2", "rack2", "power:rack1"]
    trunks = [link.id for link in four_spines.trunks]
    counters: dict[str, int] = {}
    down: set[str] = set()
    said = []
    for _ in range(30):
        match rng.randrange(4):
            case 0:
                said += bench.hear(request(rng.choice(targets), strength=rng.choice(["hard", "soft"])))
            case 1:
                said += bench.hear(request(rng.choice(targets), "undrain"))
            case _:
                link = rng.choice(trunks)
                counters[link] = counters.get(link, 0) + 1
                said += (bench.repair if link in down else bench.fail)(link, counters[link])
                down ^= {link}
        said += bench.wait(rng.choice([1, 5, 200]) * MS)
    for link in sorted(down):
        said += bench.repair(link, counters[link] + 1)
    for target in targets:
        said += bench.hear(request(target, "undrain"))
    said += bench.wait(SECOND)

    assert kit.marks(said, "push_withheld", "push_refused", "generation_incomplete") == []
    assert {node: program.routes for node, program in bench.programs.items()} == {
        node: program.routes for node, program in first.items()
    }
