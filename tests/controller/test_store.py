"""What outlives the controller's process."""

import subprocess
import sys
from pathlib import Path

import pytest

from erfs.errors import ConfigError
from erfs.messages import CONTROLLER, Drain, Drains
from erfs_controller.aio.store import ControllerStore, Stored

DRAINED = Drains(
    sender=CONTROLLER,
    revision=3,
    drains=(
        Drain.model_validate(
            {"target_kind": "rack", "target": "rack3", "strength": "soft", "by": "eve", "begins_wall_ns": 1}
        ),
    ),
)


def test_a_new_store_holds_nothing(tmp_path: Path) -> None:
    assert ControllerStore(tmp_path / "new/state.sqlite3").load() == Stored(0, None)


def test_what_is_saved_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    store = ControllerStore(path)
    store.save_epoch(6)
    store.save_drains(DRAINED)
    store.save_epoch(7)

    assert ControllerStore(path).load() == Stored(7, DRAINED)


def test_a_killed_process_leaves_what_it_saved(tmp_path: Path) -> None:
    """It never closes the file: what counts is in the write-ahead log."""
    path = tmp_path / "state.sqlite3"
    program = f"""
import os, signal
from pathlib import Path
from erfs_controller.aio.store import ControllerStore
ControllerStore(Path({str(path)!r})).save_epoch(9)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    assert done.returncode == -9
    assert path.with_name("state.sqlite3-wal").stat().st_size > 0
    assert ControllerStore(path).load().epoch == 9


@pytest.mark.parametrize(
    ("name", "value"), [("epoch", b"-1"), ("epoch", b"many"), ("drains", b"{}"), ("drains", b'{"kind":"leader"}')]
)
def test_a_value_that_means_nothing_is_told(tmp_path: Path, name: str, value: bytes) -> None:
    path = tmp_path / "state.sqlite3"
    store = ControllerStore(path)
    store.save_epoch(1)
    store._save(name, value)

    with pytest.raises(ConfigError, match="cannot be used"):
        ControllerStore(path).load()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    path.write_bytes(b"something else entirely " * 40)

    with pytest.raises(ConfigError, match="file is not a database"):
        ControllerStore(path).load()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigError, match="cannot be used"):
        ControllerStore(tmp_path / "file/state.sqlite3").load()
