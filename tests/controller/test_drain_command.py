"""`erfs drain`, `undrain` and `drains` before a real controller core; the bus between them is a table of messages here."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from erfs.cli import operator
from erfs.cli.main import main
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.messages import decode, encode
from erfs.ports import Incoming, Priority, Publish
from erfs.topics import RETAINED, Topics
from erfs.units import MINUTE, MS, SECOND

TOPICS = Topics()
Run = Callable[..., tuple[int, str, str]]


class Wire:
    """An operator's end of the bus: what is said goes to the bench's controller at once, what that says comes back."""

    def __init__(self, bench: Any, retained: dict[str, bytes]) -> None:
        self._bench = bench
        self._retained = retained
        self._said: list[bytes] = []
        self._wanted: frozenset[str] = frozenset()
        self.on_message: Callable[[Incoming], None] = lambda incoming: None

    def subscribe(self, filters: frozenset[str]) -> None:
        self._wanted = filters

    def publish(self, topic: str, payload: bytes, *, retain: bool, priority: Priority) -> None:
        self._said.append(payload)

    async def run(self) -> None:
        for topic, payload in sorted(self._retained.items()):
            self._arrive(topic, payload, is_retained=True)
        for payload in self._said:
            for command in self._bench.hear(decode(payload)) + self._bench.wait(5 * SECOND):
                if isinstance(command, Publish):
                    topic, message = TOPICS.topic(command.address), encode(command.message)
                    if command.address.channel in RETAINED:
                        self._retained[topic] = message
                    self._arrive(topic, message, is_retained=False)
        await asyncio.Event().wait()

    def _arrive(self, topic: str, payload: bytes, *, is_retained: bool) -> None:
        if topic in self._wanted:
            self.on_message(Incoming(topic, payload, is_retained))


@pytest.fixture
def bench(kit: Any) -> Any:
    """A controller that leads four leaves and four spines."""
    found = kit.bench(generate("leaf-spine", {"leaves": 4, "spines": 4, "hosts_per_leaf": 1, "attachments": 2}))
    found.lead()
    return found


@pytest.fixture
def run(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `erfs` with these arguments; return its exit code, standard output and standard error."""
    retained: dict[str, bytes] = {}
    monkeypatch.setattr(operator, "new_bus", lambda settings, purpose: Wire(bench, retained))
    monkeypatch.setattr(operator, "ANSWER_NS", 200 * MS)
    for command in bench.said:
        if isinstance(command, Publish) and command.address.channel in RETAINED:
            retained[TOPICS.topic(command.address)] = encode(command.message)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["erfs", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_a_drain_shows_its_plan_then_its_progress_then_its_end(run: Run) -> None:
    code, out, err = run("drain", "spine2")

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "node spine2: 4 links",
        (
            "  everybody else keeps at least 75 % of paths (leaf0 towards @leaf2+leaf3), "
            "at least 75 % of capacity (leaf0 towards @leaf2+leaf3)"
        ),
        "accepted; it outlives a restart of the controller",
        "moving traffic: new routes first, then the old ones go",
        "done",
    ]


def test_a_refusal_says_why_and_costs_exit_code_3(run: Run) -> None:
    run("drain", "leaf0")

    code, out, _ = run("drain", "leaf1")

    assert code == 3
    assert out.splitlines() == [
        "node leaf1: 6 links",
        "  attached to it: leaf0-host0, leaf1-host0",
        "  everybody else keeps everything",
        "  last path lost: leaf0-host0, leaf1-host0",
        "refused: it would take the last path of 10 demands, of leaf0-host0, leaf1-host0",
    ]


def test_a_reason_forces_it(run: Run) -> None:
    run("drain", "leaf0")

    code, out, _ = run("drain", "leaf1", "--force", "the row is replaced")

    assert code == 0
    assert "forced, although: it would take the last path of 10 demands, of leaf0-host0, leaf1-host0" in out
    assert out.splitlines()[-1] == "done"
    assert "node leaf1: hard, since 1970-01-01 00:00:0" in run("drains")[1]
    assert 'forced: "the row is replaced"' in run("drains")[1]


def test_a_dry_run_does_nothing(run: Run, bench: Any, kit: Any) -> None:
    code, out, _ = run("drain", "rack1", "--dry-run")

    assert code == 0
    assert out.splitlines()[0] == "rack rack1: 6 links"
    assert out.splitlines()[-1] == "nothing was done: this was a dry run"
    assert kit.marks(bench.said, "drain_begun") == []


def test_the_list_tells_what_is_drained_and_whether_the_controller_lives(run: Run) -> None:
    assert run("drains") == (0, "as the controller says\nnothing is drained\n", "")
    run("drain", "spine1", "--soft", "--for", "2 h")

    code, out, _ = run("drains")

    assert code == 0
    assert out.splitlines()[0] == "as the controller says"
    assert out.splitlines()[1].startswith("node spine1: soft, since 1970-01-01 00:00:0")
    (only,) = json.loads(run("drains", "--json")[1])["drains"]
    assert (only["target"], only["ends_wall_ns"] - only["begins_wall_ns"]) == ("spine1", 120 * MINUTE)


def test_undrained_is_as_before(run: Run) -> None:
    run("drain", "spine1")

    assert run("undrain", "spine1")[0] == 0
    assert run("drains")[1].splitlines()[-1] == "nothing is drained"
    assert run("undrain", "spine1") == (3, 'refused: node "spine1" is not drained (drained: nothing)\n', "")


def test_what_is_not_done_in_time_stands_and_costs_exit_code_2(run: Run, bench: Any) -> None:
    bench.mute = {NodeId("leaf0")}

    code, out, err = run("drain", "spine1", "--wait", "1 ms")

    assert code == 2
    assert out.splitlines()[-1].startswith("waiting: 1 agents have not acknowledged generation")
    assert "it stands, and the controller goes on with it" in err


def test_without_a_leading_controller_it_says_so(run: Run, bench: Any, kit: Any) -> None:
    bench.hear(kit.alive("two", 99))

    code, out, err = run("drain", "spine1")

    assert (code, out) == (70, "")
    assert "no controller answered within" in err


def test_the_answers_as_json_are_those_of_the_wire(run: Run) -> None:
    code, out, _ = run("drain", "spine2", "--json")

    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [answer["state"] for answer in answers][:2] == ["accepted", "moving"]
    assert answers[-1]["state"] == "done"
    assert answers[0]["plan"]["link_count"] == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("spine1", "--force", "  "), "say why"),
        (("spine1", "--for", "0 s"), "no time at all"),
        (("spine1", "--for", "2 parsecs"), 'unknown unit "parsecs"'),
        (("spine1", "--broker", "nowhere"), '"nowhere" is not HOST:PORT'),
        ((), "Missing argument 'TARGET'"),
    ],
)
def test_a_bad_drain_is_a_usage_error(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = run("drain", *arguments)

    assert code == 64
    assert told in err
