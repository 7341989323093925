"""Sessions in a process of their own: busy, dead and killed agents, and what their neighbours make of them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.ports import Mark
from erfs.units import MS
from erfs_agent.aio.session_child import Setup
from erfs_agent.aio.session_process import SessionProcess
from erfs_agent.aio.sessions import Wire
from erfs_agent.probing import DownReason, SessionDown, SessionEnd, SessionTiming, SessionUp

from .test_sessions import addresses, until

LEAF, SPINE = NodeId("leaf1"), NodeId("spine1")
LINK = LinkId("leaf1:e1|spine1:e1")
TIMING = SessionTiming(interval_ns=20 * MS, multiplier=10, slow_start_ns=20 * MS)


class Node:
    """One node's process and what it said."""

    def __init__(self, node: NodeId, far_end: NodeId, wire: Wire) -> None:
        self.marks: list[Mark] = []
        self.said: list[SessionUp | SessionDown] = []
        self.errors: list[Exception] = []
        end = SessionEnd(PortBinding(port="e1", link=LINK, far_end=far_end), TIMING)
        self.sessions = SessionProcess(
            Setup(node, (end,), {"e1": wire}), on_mark=lambda mark, _: self.marks.append(mark)
        )
        self.sessions.on_change = self.said.append
        self.sessions.on_error = self.errors.append

    def is_up(self) -> bool:
        return self.said[-1:] == [SessionUp("e1")]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    """A leaf and a spine whose session is up."""
    near, far = addresses(2)
    leaf, spine = Node(LEAF, SPINE, Wire(near, far)), Node(SPINE, LEAF, Wire(far, near))
    with ExitStack() as stack:
        for node in (leaf, spine):
            node.sessions.start()
            stack.callback(node.sessions.abandon)
        await until(lambda: leaf.is_up() and spine.is_up())
        yield leaf, spine


def marks_of(node: Node) -> list[str]:
    return [mark.event for mark in node.marks]


async def packets_go_on(condition: Callable[[], bool]) -> bool:
    """Let two detection times pass; return whether *condition* held."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.4, over.set)
    await over.wait()
    return condition()


async def test_an_agent_that_is_busy_for_two_detection_times_loses_nothing(pair: tuple[Node, Node]) -> None:
    leaf, spine = pair
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        pass
    assert await packets_go_on(lambda: True)
    assert (leaf.said, spine.said) == ([SessionUp("e1")], [SessionUp("e1")])


async def test_a_stop_says_goodbye_and_an_abandoned_end_does_not(pair: tuple[Node, Node]) -> None:
    leaf, spine = pair
    leaf.sessions.stop()
    await until(lambda: "session_paused" in marks_of(spine))
    assert spine.said == [SessionUp("e1")]

    leaf.sessions.start()
    await until(lambda: spine.said == [SessionUp("e1")] * 2)
    leaf.sessions.abandon()
    await until(lambda: spine.said[2:] == [SessionDown("e1", DownReason.SILENT)])


async def test_a_process_that_dies_is_started_again(pair: tuple[Node, Node]) -> None:
    leaf, spine = pair
    first = leaf.sessions.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: leaf.said == [SessionUp("e1")] * 2 and spine.is_up())
    assert leaf.sessions.pid not in (None, first)
    assert leaf.errors == []


async def test_a_terminated_process_says_goodbye_before_it_is_started_again(pair: tuple[Node, Node]) -> None:
    leaf, spine = pair
    assert leaf.sessions.pid is not None
    os.kill(leaf.sessions.pid, signal.SIGTERM)
    await until(lambda: "session_paused" in marks_of(spine))
    await until(lambda: spine.said == [SessionUp("e1")] * 2)


async def test_intervals_change_while_it_runs_and_outlast_its_death(pair: tuple[Node, Node]) -> None:
    leaf, spine = pair
    faster = replace(TIMING, interval_ns=10 * MS, multiplier=20)
    for node in (leaf, spine):
        node.sessions.retime({"e1": faster})
    assert await packets_go_on(lambda: leaf.is_up() and spine.is_up())
    assert leaf.sessions.pid is not None
    os.kill(leaf.sessions.pid, signal.SIGKILL)
    await until(lambda: leaf.said == [SessionUp("e1")] * 2)
    assert leaf.sessions.setup.ends[0].timing == faster


async def test_what_the_process_may_not_say_reaches_whoever_runs_the_sessions(pair: tuple[Node, Node]) -> None:
    leaf, _ = pair

    def refuse(change: SessionUp | SessionDown) -> None:
        raise RuntimeError("not now")

    leaf.sessions.on_change = refuse
    assert leaf.sessions.pid is not None
    os.kill(leaf.sessions.pid, signal.SIGKILL)
    await until(lambda: leaf.errors)
    assert (str(leaf.errors[0]), leaf.sessions.pid) == ("not now", None)
