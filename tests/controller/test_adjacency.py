"""The life of one adjacency: every cell of the table, and which word is the newer one."""

import pytest

from erfs.errors import Bug
from erfs.ids import LinkId, NodeId
from erfs.messages import DownFact, PortHealth
from erfs_controller.adjacency import TRANSITIONS, Adjacency, Signal, Word, next_state, replaces

EXPECTED = {
    ("unknown", "said_up"): "up",
    ("unknown", "said_down"): "down",
    ("unknown", "agent_gone"): "unknown",
    ("unknown", "agent_back"): "unknown",
    ("up", "said_up"): "up",
    ("up", "said_down"): "down",
    ("up", "agent_gone"): "up",
    ("up", "agent_back"): "up",
    ("down", "said_up"): "up",
    ("down", "said_down"): "down",
    ("down", "agent_gone"): "down",
    ("down", "agent_back"): "down",
}
FAR = NodeId("b")


@pytest.mark.parametrize("state", Adjacency)
@pytest.mark.parametrize("signal", Signal)
def test_every_signal_has_one_outcome_in_every_state(state: Adjacency, signal: Signal) -> None:
    assert next_state(state, signal) == EXPECTED[state.value, signal.value]


def test_silence_moves_nothing() -> None:
    """Neither the going nor the return of an agent says anything about its links."""
    for signal in (Signal.AGENT_GONE, Signal.AGENT_BACK):
        assert {state: next_state(state, signal) for state in Adjacency} == {state: state for state in Adjacency}


def test_a_missing_cell_is_a_bug() -> None:
    assert {state: set(row) for state, row in TRANSITIONS.items()} == {state: set(Signal) for state in Adjacency}
    with pytest.raises(Bug, match=r'adjacency "up" has no cell for the signal "sang"'):
        next_state(Adjacency.UP, "sang")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new", "old", "is_believed"),
    [
        (Word(True, 0, FAR), None, True),
        (Word(False, 3, FAR), Word(True, 2, FAR), True),
        (Word(True, 3, FAR), Word(False, 2, FAR), True),
        (Word(False, 1, FAR), Word(True, 2, FAR), False),
        (Word(True, 1, FAR), Word(False, 2, FAR), False),
        (Word(False, 2, FAR), Word(False, 2, FAR), False),
        (Word(True, 2, FAR), Word(False, 2, FAR), False),
        (Word(False, 2, FAR), Word(True, 2, FAR), True),
    ],
)
def test_the_higher_counter_is_believed_and_bad_news_wins_a_tie(new: Word, old: Word | None, is_believed: bool) -> None:
    assert replaces(new, old) is is_believed


@pytest.mark.parametrize(
    ("oper_up", "held", "is_up"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_held_port_is_not_up_yet(oper_up: bool, held: bool, is_up: bool) -> None:
    port = PortHealth(port="1", link=LinkId("a:1|b:1"), far_end=FAR, oper_up=oper_up, held=held, counter=4)
    assert Word.of_health(port) == Word(is_up, 4, FAR)


def test_a_fact_and_its_clearing_are_words() -> None:
    fact = DownFact(sender=NodeId("a"), link=LinkId("a:1|b:1"), port="1", far_end=FAR, counter=3, down=True)
    assert Word.of_fact(fact) == Word(False, 3, FAR)
    assert Word.of_fact(fact.model_copy(update={"down": False, "counter": 4})) == Word(True, 4, FAR)
