"""The operator of a run: what it asks for, and when a drain is in effect or over."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from erfs.aio import edge
from erfs.aio.memory import MemoryBroker, MemoryBus
from erfs.faults import Fault, FaultKind
from erfs.ids import NodeId
from erfs.messages import CONTROLLER, DrainAnswer, DrainRequest
from erfs.ports import Incoming, Publish, Subscribe
from erfs.topics import Address, Channel, Topics
from erfs.units import SECOND
from erfs_scenario.operator import Operator, operator_on


@dataclass
class Desk:
    """An operator, what it asked for, and what it told; the test answers."""

    asked: list[DrainRequest] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    timers: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.operator = Operator(
            self._hear,
            lambda event, fields: self.told.append((event, str(fields["fault"]))),
            lambda delay_ns, action: self.timers.append(action),
        )

    def wait(self) -> None:
        """Let all timers run out that are set now."""
        timers, self.timers = self.timers, []
        for action in timers:
            action()

    def _hear(self, sent: Publish) -> None:
        assert isinstance(sent.message, DrainRequest)
        self.asked.append(sent.message)

    def answer(self, state: str, *, number: int = -1) -> None:
        """Answer a request, by default the last."""
        said = {"sender": CONTROLLER, "request": self.asked[number].request, "state": state}
        reasons = ("no",) if state == "refused" else ()
        self.operator.hear(DrainAnswer.model_validate(said | {"reasons": reasons}))

    def words(self) -> list[tuple[str, str]]:
        """Return (action, target) of all it asked for."""
        return [(request.action, request.target) for request in self.asked]


def drain(name: str, *nodes: str, **how: str) -> Fault:
    return Fault(name, FaultKind.DRAIN, 0, 1, nodes=tuple(NodeId(node) for node in nodes), **how)  # type: ignore[arg-type]


def test_a_drain_is_in_effect_when_all_of_it_is_accepted_and_done_when_all_has_moved() -> None:
    desk = Desk()
    desk.operator.begin(drain("both", "a", "b", strength="soft", force="meant"))
    assert [(one.strength, one.force, one.target) for one in desk.asked] == [
        ("soft", "meant", "node:a"),
        ("soft", "meant", "node:b"),
    ]
    desk.answer("accepted", number=0)
    desk.answer("moving", number=0)
    desk.answer("done", number=0)
    assert desk.told == []
    desk.answer("accepted")
    assert desk.told == [("fault_effective", "both")]
    desk.answer("done")
    assert desk.told[1:] == [("drain_done", "both")]

    desk.operator.end(drain("both", "a", "b"))
    assert desk.words()[2:] == [("undrain", "node:a"), ("undrain", "node:b")]
    desk.answer("accepted", number=2)
    desk.answer("accepted", number=3)
    assert desk.told[2:] == [("fault_ended", "both")]


def test_a_refused_drain_is_not_in_effect_and_needs_no_undrain() -> None:
    desk = Desk()
    desk.operator.begin(drain("one", "a"))
    desk.answer("refused")
    desk.operator.end(drain("one", "a"))

    assert desk.told == [("fault_not_effective", "one"), ("fault_ended", "one")]
    assert desk.words() == [("drain", "node:a")]


def test_a_drain_that_ends_before_it_is_answered_is_undrained_once_it_is_accepted() -> None:
    desk = Desk()
    desk.operator.begin(drain("brief", "a"))
    desk.operator.end(drain("brief", "a"))
    assert desk.words() == [("drain", "node:a")]

    desk.answer("accepted")
    assert desk.words()[1:] == [("undrain", "node:a")]
    desk.answer("accepted")
    assert desk.told == [("fault_effective", "brief"), ("fault_ended", "brief")]


def test_what_two_hold_is_undrained_when_the_last_lets_go() -> None:
    desk = Desk()
    for name in ("one", "other"):
        desk.operator.begin(drain(name, "a"))
        desk.answer("accepted")
    desk.operator.end(drain("one", "a"))
    assert desk.words() == [("drain", "node:a"), ("drain", "node:a")]
    assert desk.told[2:] == [("fault_ended", "one")]

    desk.operator.end(drain("other", "a"))
    assert desk.words()[2:] == [("undrain", "node:a")]


def test_a_drain_that_outlives_a_refused_second_one_is_undrained_all_the_same() -> None:
    desk = Desk()
    desk.operator.begin(drain("one", "a"))
    desk.answer("accepted")
    desk.operator.begin(drain("other", "a"))
    desk.operator.end(drain("one", "a"))
    assert len(desk.asked) == 2

    desk.answer("refused")
    assert desk.words()[2:] == [("undrain", "node:a")]
    desk.answer("accepted")
    assert desk.told == [("fault_effective", "one"), ("fault_not_effective", "other"), ("fault_ended", "one")]


def test_an_undrain_that_is_refused_is_told() -> None:
    """Somebody else's operator was quicker."""
    desk = Desk()
    desk.operator.begin(drain("one", "a"))
    desk.answer("accepted")
    desk.operator.end(drain("one", "a"))
    desk.answer("refused")

    assert desk.told[-1] == ("fault_not_ended", "one")


def test_who_gets_no_answer_asks_again_and_whoever_has_one_does_not() -> None:
    desk = Desk()
    desk.operator.begin(drain("one", "a"))
    desk.wait()
    assert desk.asked[0] == desk.asked[1]
    desk.answer("accepted")
    desk.answer("accepted")
    desk.wait()

    assert len(desk.asked) == 2
    assert desk.told == [("fault_effective", "one")]


def test_an_undrain_whose_answer_was_lost_is_over_when_it_is_refused_the_second_time() -> None:
    desk = Desk()
    desk.operator.begin(drain("one", "a"))
    desk.answer("accepted")
    desk.operator.end(drain("one", "a"))
    desk.wait()
    desk.answer("refused")

    assert desk.told[-1] == ("fault_ended", "one")


def test_on_a_bus_it_speaks_and_hears_as_any_operator() -> None:
    """Over the memory broker, to somebody who accepts everything."""
    broker: MemoryBroker[bytes] = MemoryBroker(Random(1))
    topics = Topics()
    told: list[str] = []
    controller, here = (MemoryBus(broker.connect(name)) for name in ("controller", "operator"))

    def accept(incoming: Incoming) -> None:
        delivered = edge.receive(topics, incoming)
        assert delivered is not None
        assert isinstance(delivered.message, DrainRequest)
        answers = Address(Channel.DRAIN_ANSWER, NodeId(delivered.message.request))
        answer = DrainAnswer(sender=CONTROLLER, request=delivered.message.request, state="accepted")
        edge.publish(controller, topics, Publish(answers, answer))

    controller.on_message = accept
    controller.subscribe(edge.filters(topics, Subscribe(addresses=(Address(Channel.DRAIN),))))
    operator = operator_on(here, topics, lambda event, fields: told.append(event), lambda delay_ns, action: None)
    operator.begin(drain("one", "a"))
    broker.advance(1 * SECOND)

    assert told == ["fault_effective"]
    assert operator.outcomes == {"one": "fault_effective"}


def test_answers_to_others_are_none_of_its_business() -> None:
    desk = Desk()
    desk.operator.hear(DrainAnswer(sender=CONTROLLER, request="0badcafe", state="done"))

    assert desk.told == []
