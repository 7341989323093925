"""Nodes that forward without an agent stay as they are: the others are ordered around them, or wait."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.generators import generate
from erfs.ids import LinkId, class_id
from erfs.messages import Program
from erfs.paths import Topology, Verifier, compute, plan_rounds
from tests.paths.fabrics import Draft, fabrics, loops_in, tables_of, tangle
from tests.paths.oracle import always, tiers
from tests.paths.test_ordering import ALL_UP, link_sets, mixtures


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_no_mixture_loops_while_some_nodes_cannot_follow(data: st.DataObject) -> None:
    """A pinned node may also come back, at the end, and take the program on its topic."""
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    old = compute(topology, unusable=data.draw(link_sets(fabric)), is_protecting=False).programs
    new = compute(topology, unusable=data.draw(link_sets(fabric)), is_protecting=False).programs
    gone = data.draw(st.sets(st.sampled_from([node.id for node in fabric.switches]), min_size=1, max_size=2))
    rounds = plan_rounds(old, new, fabric, {node: (old[node],) for node in sorted(gone)})
    theirs = {node: program for programs in rounds for node, program in programs.items() if node in gone}
    others = [{node: program for node, program in programs.items() if node not in gone} for programs in rounds]
    for state in mixtures(data, old, [programs for programs in others if programs]):
        assert loops_in(fabric, tables_of(state)) == []
    last = dict(old)
    for programs in others:
        last.update(programs)
    for state in mixtures(data, last, [theirs] if theirs else []):
        assert loops_in(fabric, tables_of(state)) == []


def test_nobody_sends_into_a_pinned_node_that_has_no_way_on() -> None:
    """The cable came back, but the agent that would have to use it is gone: its switch has no route over it."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    cable = next(link for link in fabric.trunks if {end.node for end in link.ends} == {"pod0-agg0", "pod0-edge0"})
    destination = class_id(["pod0-edge0"])
    old = compute(topology, unusable=frozenset({cable.id})).programs
    new = compute(topology, unusable=ALL_UP).programs
    core = next(link.far_end("pod0-agg0").node for link in fabric.links_of["pod0-agg0"] if "core" in link.id)

    def served_by(program: Program) -> bool:
        return any(route.destination == destination for route in program.routes)

    followed = {node: program for programs in plan_rounds(old, new, fabric) for node, program in programs.items()}
    assert served_by(followed[core])

    pinned = {"pod0-agg0": (old["pod0-agg0"],)}
    held = {node: program for programs in plan_rounds(old, new, fabric, pinned) for node, program in programs.items()}
    assert core not in held, "it has nobody to send to yet"
    assert "pod0-agg0" not in held, "it takes the way only with those who would send over it"


def test_what_a_pinned_node_does_not_touch_goes_on_around_it() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 3, "hosts_per_leaf": 1, "cables": 1})
    topology = Topology(fabric)
    trunks = {tuple(sorted(end.node for end in link.ends)): link.id for link in fabric.trunks}
    leaf, spine = (
        min(node.id for node in fabric.switches if node.tier == 1),
        sorted(node.id for node in fabric.switches if node.tier == 2),
    )
    old = compute(topology, unusable=frozenset({trunks[leaf, spine[0]]})).programs
    new = compute(topology, unusable=ALL_UP).programs
    rounds = plan_rounds(old, new, fabric, {spine[1]: (old[spine[1]],)})
    state = {**old, **{node: program for programs in rounds for node, program in programs.items()}}
    assert state == new


@pytest.mark.parametrize("seed", range(100, 180))
def test_around_nodes_that_cannot_follow_no_round_is_unsafe(seed: int) -> None:
    """
    Where valleys are forbidden, and elsewhere; a pinned node may be running any of several programs.

    Found by a search: a pinned node that turns up while another one still sends down to it, and one that is pinned to a way up
    while the others begin to send down to it.
    """
    random = Random(seed)
    fabric = tiers(random) if seed % 4 else tangle(random)
    topology, links = Topology(fabric), sorted(fabric.links)

    def some() -> frozenset[LinkId]:
        return frozenset(random.sample(links, random.randint(0, 4)))

    is_protecting, lost = random.random() < 0.5, some()
    old, new = (compute(topology, unusable=state, is_protecting=is_protecting).programs for state in (some(), lost))
    gone = sorted(random.sample([node.id for node in fabric.switches], random.choice([0, 1, 2, 2])))
    pinned = {node: (old[node],) if random.random() < 0.6 else (old[node], new[node]) for node in gone}
    rounds = plan_rounds(old, new, fabric, pinned)
    working = random.choice([always, lambda link: link not in lost])
    assert Verifier(fabric).verify_rounds(old, rounds, working=working, pinned=pinned).unsafe_round() is None


def test_who_could_only_send_up_what_comes_down_to_it_ends_at_once() -> None:
    """
    m loses its last attachment. leaf had sent to it by spine0; other begins to send to its class, down to leaf.

    Found by a search: leaf, which forgets m last so that nothing is cut, sent up again what other sent down.
    """
    draft = Draft()
    leaf, spine0, other = draft.switch("leaf", 1), draft.switch("spine0", 2), draft.switch("spine1", 2)
    upward = draft.cable(leaf, spine0)
    draft.cable(leaf, other)
    for switch in (leaf, other):
        draft.host(f"h-{switch}", switch)
    m = draft.host("m", leaf, spine0)
    fabric = draft.fabric()
    down, up = sorted(fabric.links_of[m], key=lambda link: link.far_end(m).node)
    topology = Topology(fabric)
    old = compute(topology, unusable=frozenset({down.id}), is_protecting=False).programs
    new = compute(topology, unusable=frozenset({down.id, up.id, upward}), is_protecting=False).programs
    rounds = plan_rounds(old, new, fabric)
    assert Verifier(fabric).verify_rounds(old, rounds, working=always).unsafe_round() is None
