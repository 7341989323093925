"""Send numbered datagrams at a steady rate along many flows, and note which arrived when: a process of its own.

    python -m erfs_scenario.kernel.prober CONFIG

Rule 1: it knows addresses and namespaces, nothing of fabrics, faults or routes; what the notes mean is `outages`' business.
Rule 2: instants of arrival are the kernel's; the process' own lateness is measured and noted, never hidden.

One socket for each source, raw, so that the flows of a source differ in their UDP source port and go out by one system call;
one socket for each target. A tick sends one datagram of every flow.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from erfs.aio.namespaces import inside
from erfs_scenario.kernel.batches import Arrivals, Receiver, Sender, raw_address

_UDP_HEADER: Final = 8
_BODY: Final = 8
_IPV6_CHECKSUM, _IPPROTO_IPV6 = 7, 41
_SO_RCVBUFFORCE: Final = 33
# Before ordinary programs and agents, so that a busy machine does not make the instrument late; behind the liveness sessions.
_PRIORITY: Final = 7
# Two seconds of datagrams of a busy target; the process may be held up for as long without losing any of them.
_RECEIVE_BUFFER: Final = 8 << 20


class ProbeFlow(BaseModel):
    """One flow. Namespaces are paths, such as ``/proc/1234/ns/net``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source_space: str
    target_space: str
    source_address: str
    target_address: str
    source_port: int = Field(ge=1, le=65535)


class ProbeConfig(BaseModel):
    """What to send, and where to write what arrived."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flows: tuple[ProbeFlow, ...]
    interval_ns: int = Field(ge=100_000)
    duration_ns: int = Field(ge=1)
    """At most so long; SIGTERM ends it earlier."""
    target_port: int = Field(default=50_000, ge=1, le=65535)
    output: str
    """An .npz file, written at the end, whole or not at all."""


class Prober:
    """The flows of one configuration, ready to be sent."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._is_stopped = False
        self._senders: list[tuple[Sender, NDArray[np.uint32]]] = []
        """Each with where the number of its next datagrams is written."""
        self._receivers: list[Receiver] = []
        self._sockets: list[socket.socket] = []
        self._arrivals: list[Arrivals] = []
        by_source: dict[tuple[str, str, bool], list[int]] = {}
        targets: dict[tuple[str, str], None] = {}
        for number, flow in enumerate(config.flows):
            by_source.setdefault((flow.source_space, flow.source_address, ":" in flow.source_address), []).append(
                number
            )
            targets[flow.target_space, flow.target_address] = None
        for space, address in targets:
            self._receivers.append(self._receiver(space, address))
        for (space, address, _), numbers in by_source.items():
            sender = self._sender(space, address, numbers)
            self._senders.append((sender, sender.payload[:, _UDP_HEADER + 4 :].view(np.uint32)[:, 0]))

    def stop(self) -> None:
        """End after this tick."""
        self._is_stopped = True

    def run(self) -> None:
        """Send until the time is over or `stop` was called, take in the rest, write the notes."""
        config = self._config
        ticks: list[tuple[int, int]] = []
        refused = np.zeros(len(self._senders), dtype=np.int64)
        # Kernel instants are of CLOCK_REALTIME; nobody may set that clock during a run.
        offset_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
        start_ns = time.monotonic_ns()
        number = 0
        while not self._is_stopped and number * config.interval_ns < config.duration_ns:
            due_ns = start_ns + number * config.interval_ns
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            sent_at_ns = time.monotonic_ns()
            for index, (sender, numbers) in enumerate(self._senders):
                numbers[:] = number
                refused[index] += sender.send()
            ticks.append((due_ns, sent_at_ns))
            # One target a tick: the kernel has stamped what waits, and every tick takes equally long.
            self._take_in(self._receivers[number % len(self._receivers)])
            number += 1
        deadline_ns = time.monotonic_ns() + 20 * config.interval_ns
        while time.monotonic_ns() < deadline_ns:
            time.sleep(config.interval_ns / 1e9)
        for receiver in self._receivers:
            self._take_in(receiver)
        # Who computes for long before all others has the kernel stop everybody like it for 50 ms, liveness sessions included.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        self._write(np.array(ticks, dtype=np.int64).reshape(-1, 2), refused, offset_ns)

    def close(self) -> None:
        """Give the sockets back."""
        for sock in self._sockets:
            sock.close()

    def _take_in(self, receiver: Receiver) -> None:
        arrivals = receiver.receive()
        if len(arrivals.at_ns):
            self._arrivals.append(arrivals)

    def _write(self, ticks: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", refused: object, offset_ns: int) -> None:
        payload = np.concatenate([part.payload for part in self._arrivals] or [np.zeros((0, _BODY), dtype=np.uint8)])
        at_ns = np.concatenate([part.at_ns for part in self._arrivals] or [np.zeros(0, dtype=np.int64)]) - offset_ns
        numbers = payload.view(np.uint32).reshape(-1, 2)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        output = Path(self._config.output)
        partial = output.with_name(output.name + ".part.npz")
        np.savez(
            partial,
            flow=numbers[:, 0],
            number=numbers[:, 1],
            arrived_at_ns=at_ns,
            due_at_ns=ticks[:, 0],
            sent_at_ns=ticks[:, 1],
            refused=np.asarray(refused),
            cpu_s=np.array(usage.ru_utime + usage.ru_stime),
        )
        partial.replace(output)

    def _receiver(self, space: str, address: str) -> Receiver:
        with inside(Path(space)):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            # Past the system's limit, which holds a busy target's datagrams for a tenth of a second.
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        sock.bind((address, self._config.target_port))
        self._sockets.append(sock)
        return Receiver(sock, _BODY)

    def _sender(self, space: str, address: str, numbers: list[int]) -> Sender:
        flows = [self._config.flows[number] for number in numbers]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with inside(Path(space)):
            sock = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_UDP)
        if family == socket.AF_INET6:
            # A UDP checksum is a must in IPv6: the kernel fills it in, six bytes into what we hand over.
            sock.setsockopt(_IPPROTO_IPV6, _IPV6_CHECKSUM, 6)
        # A raw socket is given every UDP datagram that comes to the host: let the kernel keep none of them.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.bind((address, 0))
        self._sockets.append(sock)
        sender = Sender(sock, [raw_address(flow.target_address, 0) for flow in flows], _UDP_HEADER + _BODY)
        for row, (number, flow) in enumerate(zip(numbers, flows, strict=True)):
            header = struct.pack(">HHHH", flow.source_port, self._config.target_port, _UDP_HEADER + _BODY, 0)
            sender.payload[row, :_UDP_HEADER] = np.frombuffer(header, dtype=np.uint8)
            sender.payload[row, _UDP_HEADER : _UDP_HEADER + 4].view(np.uint32)[0] = number
        return sender


def main(arguments: list[str]) -> None:
    """Probe as the configuration file says. Prints "ready" once all sockets are open."""
    config = ProbeConfig.model_validate_json(Path(arguments[0]).read_text())
    prober = Prober(config)
    signal.signal(signal.SIGTERM, lambda *_: prober.stop())
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        prober.run()
    finally:
        prober.close()


if __name__ == "__main__":
    main(sys.argv[1:])
