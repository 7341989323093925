"""What an agent keeps survives a crash as a whole; what is damaged is told."""

import os
from pathlib import Path

import pytest

from erfs.errors import ConfigError
from erfs_agent.aio.store import FileStore
from erfs_agent.state import AgentState, SpokenFact

STATE = AgentState(incarnation=4, facts=(SpokenFact(port="e1", counter=3, down=True),), cannot_reach_counter=2)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new folder" / "leaf1.json")
    assert store.load() is None

    store.save(AgentState(incarnation=3))
    store.save(STATE)

    assert store.load() == STATE
    assert [path.name for path in store.path.parent.iterdir()] == ["leaf1.json"]


def test_a_crash_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "leaf1.json")
    store.save(STATE)

    def power_cut(_: int) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(OSError, match="power cut"):
        store.save(AgentState(incarnation=5))

    assert store.load() == STATE


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "content: Invalid JSON"),
        (b'{"incarnation":4,"pro', "content: Invalid JSON"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "content: Invalid JSON"),
        (b'{"incarnation":-1}', "incarnation: Input should be greater"),
        (b'{"colour":"blue"}', "colour: Extra inputs"),
    ],
)
def test_a_damaged_file_is_told_and_can_be_set_aside(tmp_path: Path, content: bytes, told: str) -> None:
    store = FileStore(tmp_path / "leaf1.json")
    store.path.write_bytes(content)

    with pytest.raises(ConfigError, match=f"leaf1.json: is no agent state: {told}"):
        store.load()

    assert store.set_aside().read_bytes() == content
    assert store.load() is None
