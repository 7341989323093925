"""When to compute."""

from erfs.messages import FactRef
from erfs.units import MS
from erfs_controller.drain import Use
from erfs_controller.routes import Routes, is_same_work, keeping
from erfs_controller.timers import ControllerTimers

NOTHING = Use(frozenset())


def test_a_burst_of_news_is_joined_but_waits_no_longer_than_the_maximum(leaf_spine) -> None:  # type: ignore[no-untyped-def]
    routes = Routes(leaf_spine, ControllerTimers(debounce_min_ns=10 * MS, debounce_max_ns=50 * MS))
    assert routes.is_due(0, NOTHING), "nothing has been computed yet"
    routes.compute(NOTHING, ())
    down = Use(frozenset(leaf_spine.links))

    assert routes.next_wakeup_ns() is None
    routes.news(100 * MS)
    assert routes.next_wakeup_ns() == 110 * MS
    routes.news(104 * MS)
    assert routes.next_wakeup_ns() == 114 * MS
    for at_ms in range(112, 150, 8):
        routes.news(at_ms * MS)
    assert routes.next_wakeup_ns() == 150 * MS, "the first news has waited 50 ms"
    assert not routes.is_due(149 * MS, down)
    assert routes.is_due(150 * MS, down)
    routes.settle(149 * MS)
    assert routes.next_wakeup_ns() == 150 * MS
    routes.settle(150 * MS)
    assert routes.next_wakeup_ns() is None


def test_news_that_cancel_out_ask_for_nothing(leaf_spine) -> None:  # type: ignore[no-untyped-def]
    routes = Routes(leaf_spine, ControllerTimers())
    routes.compute(NOTHING, ())
    routes.news(0)
    assert not routes.is_due(10 * MS, NOTHING)
    routes.settle(10 * MS)
    assert routes.next_wakeup_ns() is None


def test_programs_that_differ_in_their_facts_alone_do_the_same_work(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    link = bench.link("leaf0", "spine0")
    routes = Routes(leaf_spine, ControllerTimers())
    one = routes.compute(Use(frozenset([link])), ())
    facts = tuple(bench_fact(bench, node, link) for node in ("leaf0", "spine0"))
    other = routes.compute(Use(frozenset([link])), facts)
    whole = routes.compute(NOTHING, ())

    assert one.programs["leaf0"].digest != other.programs["leaf0"].digest
    assert is_same_work(one.programs["leaf0"], other.programs["leaf0"])
    assert not is_same_work(one.programs["leaf0"], whole.programs["leaf0"])
    kept = keeping(one.programs, other.programs)
    assert all(kept[node] is program for node, program in one.programs.items())


def test_no_program_is_armed_for_a_link_it_was_computed_without(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """This is what makes it safe not to compute anew for the second end's fact: no entry could be moved by it."""
    bench = kit.bench(fat_tree)
    routes = Routes(fat_tree, ControllerTimers())
    for link in (bench.link("core0-0", "pod0-agg0"), bench.link("pod0-agg0", "pod0-edge0")):
        computed = routes.compute(Use(frozenset([link])), ())
        for program in computed.programs.values():
            ends = {end.node for end in fat_tree.links[link].ends}
            assert link not in program.armed.links
            assert link in program.armed.ignored or not ends & program.armed.nodes.keys()
    assert any(program.armed for program in computed.programs.values())


def bench_fact(bench, node, link):  # type: ignore[no-untyped-def]
    return FactRef(link=link, reporter=node, counter=bench.fact(node, link).counter)
