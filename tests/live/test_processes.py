"""Children of a live run."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from erfs_scenario.processes import Child, free_port, is_listening

_PARENT = """
import asyncio, pathlib, sys
from erfs_scenario.processes import Child

async def main() -> None:
    child = await Child.start("idler", [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
                              pathlib.Path(sys.argv[1]))
    while "up" not in child.last_words():
        await asyncio.sleep(0.02)
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_child_dies_with_a_parent_that_was_killed_without_a_word(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)

    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_a_child_that_ignores_the_request_to_end_is_ended(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child = await Child.start("stubborn", [sys.executable, "-c", program], tmp_path / "out")
    async with asyncio.timeout(10):
        while "up" not in child.last_words():
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])

    await child.stop()

    assert child.exit_code == -signal.SIGKILL


async def test_the_last_words_of_a_child_are_kept(tmp_path: Path) -> None:
    child = await Child.start("speaker", [sys.executable, "-c", "print('no such file')"], tmp_path / "out")

    async with asyncio.timeout(10):
        await child.stop() if not child.is_running else await child._process.wait()

    assert (child.exit_code, child.last_words()) == (0, "no such file")


async def test_a_free_port_has_no_listener() -> None:
    assert not await is_listening("127.0.0.1", free_port())
