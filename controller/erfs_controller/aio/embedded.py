"""Start the embedded broker where nobody listens yet.

Rule 1: it is a process of its own that outlives the controller: agents keep their bus whatever becomes of us.
Rule 2: whoever listens already is taken for the broker; nothing is ever stopped here.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import structlog

from erfs.aio.mqtt import BrokerAddress
from erfs.errors import ConfigError, Problem
from erfs.units import MS, SECOND

_log = structlog.get_logger(__name__)

# Python starts and amqtt is imported within 1-2 s on a loaded machine.
START_DEADLINE_NS: Final = 15 * SECOND
_POLL_NS: Final = 50 * MS


async def ensure_broker(address: BrokerAddress, log_file: Path) -> None:
    """
    Return once somebody listens at *address*; start `erfs broker` there if nobody does.

    Args:
        address: A loopback address.
        log_file: What the broker says; appended to.

    Raises:
        ConfigError: the broker ended, or does not listen after `START_DEADLINE_NS`.
    """
    if await _is_listening(address):
        return
    # The command line is not ours to import, so it is run: with the same interpreter, whatever PATH says.
    program = [sys.executable, "-c", "from erfs.cli.main import main; main()"]
    arguments = ["broker", "--host", address.host, "--port", str(address.port)]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as sink:
        broker = subprocess.Popen(  # noqa: ASYNC220, S603 -- it only forks, and is not to be tied to this loop
            program + arguments, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
    _log.info("broker_started", address=str(address), pid=broker.pid)
    try:
        async with asyncio.timeout(START_DEADLINE_NS / SECOND):
            while not await _is_listening(address):
                if broker.poll() is not None:
                    raise _trouble(log_file, f"the broker at {address} ended with exit code {broker.returncode}")
                await asyncio.sleep(_POLL_NS / SECOND)
    except TimeoutError:
        raise _trouble(log_file, f"the broker does not listen at {address}") from None


def _trouble(log_file: Path, what: str) -> ConfigError:
    words = log_file.read_text(errors="replace").splitlines()[-3:]
    return ConfigError(str(log_file), [Problem(0, f"{what}: {' / '.join(words)}")])


async def _is_listening(address: BrokerAddress) -> bool:
    try:
        _, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return False
    writer.close()
    return True
