"""The prober of a run: what it is told, when it has begun, and what its notes say of each flow.

Rule 1: the prober is a process of its own that ends with this one; its notes are read once, when it has ended.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from erfs.units import MS, SECOND
from erfs_scenario.kernel.outages import FlowRecord, Numbers, flow_records
from erfs_scenario.kernel.prober import ProbeConfig, ProbeFlow
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.kernel.tracing import TARGET_PORT, Flow, address_of
from erfs_scenario.processes import Child

INTERVAL_NS: Final = 1 * MS
_READY_S: Final = 30
_LONGEST_NS: Final = 3600 * SECOND
_LATE_PERCENTILE: Final = 99


@dataclass(frozen=True, slots=True)
class Notes:
    """
    What a prober noted.

    Args:
        flows: What became of each flow's datagrams.
        sent_at_ns: When the datagrams of each tick were sent, CLOCK_MONOTONIC.
        interval_ns: Between two ticks.
        late_p99_ns, late_max_ns: How late ticks were.
        refused: Datagrams that the kernel did not take from the sender; they were never sent.
        cpu_ppm: Its share of a processor, in millionths; most of it is the kernel's work of forwarding.
    """

    flows: tuple[FlowRecord, ...]
    sent_at_ns: Numbers
    interval_ns: int
    late_p99_ns: int
    late_max_ns: int
    refused: int
    cpu_ppm: int


class Probing:
    """
    A prober that runs.

    Args:
        spaces: Where.
        flows: What it sends.
        folder: For its configuration, notes and log.
        ip_version: 4 or 6.
        interval_ns: Between two datagrams of a flow.
    """

    def __init__(
        self,
        spaces: Spaces,
        flows: Sequence[Flow],
        folder: Path,
        *,
        ip_version: int = 4,
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        self._flows = tuple(flows)
        self.interval_ns = interval_ns
        self._config_path = folder / "prober.json"
        self._notes_path = folder / "probes.npz"
        self._log_path = folder / "prober.log"
        self._config = ProbeConfig(
            flows=tuple(
                ProbeFlow(
                    source_space=str(spaces.path(flow.source)),
                    target_space=str(spaces.path(flow.target)),
                    source_address=str(address_of(spaces, flow.source, ip_version)),
                    target_address=str(address_of(spaces, flow.target, ip_version)),
                    source_port=flow.source_port,
                )
                for flow in self._flows
            ),
            interval_ns=interval_ns,
            duration_ns=_LONGEST_NS,
            target_port=TARGET_PORT,
            output=str(self._notes_path),
        )
        self._child: Child | None = None

    async def start(self) -> None:
        """Start it; return when it sends. Raises LabError if it does not start."""
        for path in (self._notes_path, self._log_path):
            path.unlink(missing_ok=True)
        self._config_path.write_text(self._config.model_dump_json())
        self._child = child = await Child.start(
            "prober",
            (sys.executable, "-m", "erfs_scenario.kernel.prober", str(self._config_path)),
            self._log_path,
        )
        try:
            async with asyncio.timeout(_READY_S):
                while child.is_running and "ready" not in child.last_words():  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise LabError("the prober does not start") from None
        self.check()

    def check(self) -> None:
        """Raise LabError if it has died."""
        assert self._child is not None
        if not self._child.is_running:
            raise LabError(f"the prober ended with exit code {self._child.exit_code}: {self._child.last_words()}")

    async def stop(self) -> Notes:
        """End it and return its notes. Raises LabError if it died before."""
        self.check()
        assert self._child is not None
        self._child.send_signal(signal.SIGTERM)
        await self._child.ended()
        if self._child.exit_code or not self._notes_path.exists():
            raise LabError(f"the prober ended with exit code {self._child.exit_code}: {self._child.last_words()}")
        return await asyncio.to_thread(self._read)

    async def abandon(self) -> None:
        """End it, whatever it is at."""
        if self._child is not None:
            await self._child.kill()

    def _read(self) -> Notes:
        with np.load(self._notes_path) as notes:
            sent_at_ns, due_at_ns = notes["sent_at_ns"], notes["due_at_ns"]
            flow, number = notes["flow"].astype(np.int64), notes["number"].astype(np.int64)
            records = flow_records(len(self._flows), sent_at_ns, flow, number, notes["arrived_at_ns"])
            late = sent_at_ns - due_at_ns
            lasted_ns = int(sent_at_ns[-1] - sent_at_ns[0]) + self.interval_ns
            return Notes(
                flows=tuple(records),
                sent_at_ns=sent_at_ns,
                interval_ns=self.interval_ns,
                late_p99_ns=int(np.percentile(late, _LATE_PERCENTILE)),
                late_max_ns=int(late.max()),
                refused=int(notes["refused"].sum()),
                cpu_ppm=int(float(notes["cpu_s"]) * 1e15 / lasted_ns),
            )
