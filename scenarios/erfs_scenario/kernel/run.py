"""Run a plan on a real forwarding plane: namespaces, kernel routes, real agents, a real broker, numbered datagrams.

Rule 1: what controller and agents say is written down and never believed: a flow was served if its datagrams arrived.
Rule 2: one clock, CLOCK_MONOTONIC, for every process; instants count from the start of the run.
Rule 3: the flows a fault may harm are fixed before it, from the ways the kernels say they take.
Rule 4: nothing outlives the run: the lab is this process' own.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from random import SystemRandom
from typing import Final

from erfs.addressing import plan_addresses
from erfs.aio.mqtt import MqttBus
from erfs.aio.namespaces import inside
from erfs.errors import ConfigError, Problem
from erfs.fabric import LinkEnd
from erfs.faults import PHYSICAL, SILENT, TRAFFIC, Fault, FaultKind
from erfs.units import MS, PPM, SECOND, format_duration
from erfs_scenario.kernel.breakages import Breakage, Silence
from erfs_scenario.kernel.capabilities import missing_capabilities, require
from erfs_scenario.kernel.chains import Said, chains, said
from erfs_scenario.kernel.faults import NEEDS, breakage_of, refuse_overlaps
from erfs_scenario.kernel.flows import Chosen, choose_flows, sending_ends
from erfs_scenario.kernel.lab import lab_file, marked, why_not
from erfs_scenario.kernel.losses import Occurrence, effective_at, flow_id, flow_lines
from erfs_scenario.kernel.members import Members
from erfs_scenario.kernel.outages import outage_in
from erfs_scenario.kernel.owners import Registry
from erfs_scenario.kernel.probing import Notes, Probing
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.kernel.tracing import Trace, trace
from erfs_scenario.kernel.wiring import check_size
from erfs_scenario.measurement import Record
from erfs_scenario.merging import Merger
from erfs_scenario.operator import OPERATOR, Operator, operator_on
from erfs_scenario.plan import Plan, stream
from erfs_scenario.realtime import call_after, delayed, logs_in, occasions, run_to_the_end

POLL_NS: Final = 100 * MS
# How late the marks of 40 processes may be read.
WINDOW_NS: Final = 1 * SECOND
# Asking the kernels for the ways of all flows takes some 200 ms, and must be over before the fault.
PREPARE_NS: Final = 600 * MS
# An interface's carrier is told to its far end within some milliseconds; beyond this the fault did not happen.
EFFECT_NS: Final = 1 * SECOND
# What a scenario says of instants is kept to within this, or the run is not the one that was asked for.
LATE_NS: Final = 500 * MS
# For the check of the ways by counters.
COUNTED_NS: Final = 500 * MS
# What else is sent over a port meanwhile: liveness packets of 10 ms at most, neighbour discovery.
OTHER_PACKETS_PER_S: Final = 400
# And of a bus in band: an echo a second for each agent, its acknowledgements, and what else they have to say at rest.
BUS_PACKETS_PER_S: Final = 10
OFF_PPM: Final = 100_000


def run_kernel(
    plan: Plan,
    *,
    record: Record,
    on_progress: Callable[[int], None],
    out: Path,
    registry: Registry,
    ip_version: int = 4,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """
    Run *plan* in a lab of its own, as long as its duration and the start of everything take.

    Args:
        plan: What to run.
        record: Called with (at_ns, event, fields) for everything that happens; what the probes tell comes last.
        on_progress: Called with the instant, some times a second.
        out: A folder for what the processes need and say, and for the prober's notes.
        registry: Where the lab is written down meanwhile.
        ip_version: Of the probes.
        tell: Hears how the start goes.

    Raises:
        ConfigError: no rights, or the kernel lacks something, or faults that cannot be at the same time.
        FabricError: too large for a lab.
        LabError: something did not start or died; says what, and its last words.
    """
    refuse(plan)
    registry.clean()
    out.mkdir(parents=True, exist_ok=True)
    with marked() as lab, logs_in(out / "harness.log"):
        try:
            addressing = plan_addresses(plan.fabric)
            with contextlib.closing(Spaces(plan.fabric, addressing, is_bus_in_band=plan.is_bus_in_band)) as spaces:
                members = Members(spaces, out / "lab", timers=plan.timers, is_protecting=plan.is_protecting)
                measurement = Measurement(
                    plan, spaces, members, out, record=record, on_progress=on_progress, ip_version=ip_version
                )

                async def run() -> None:
                    try:
                        await members.start_all(tell)
                        registry.write(lab_file(spaces, members, lab, "up"))
                        await measurement.run()
                    finally:
                        try:
                            await members.stop()
                        finally:
                            measurement.write_down()

                with inside(spaces.path(None)):
                    run_to_the_end(run())
        finally:
            registry.forget(lab)


def refuse(plan: Plan) -> None:
    """Refuse before anything is started what cannot be run here. Raises as `run_kernel`."""
    check_size(plan.fabric)
    reason = why_not()
    if reason:
        raise ConfigError(plan.name, [Problem(0, reason, suggestion="run it as root, or with --backend sim or live")])
    refuse_overlaps(plan.faults, plan.links_hit, plan.name)
    needed = {"next-hop objects"}.union(*(NEEDS.get(fault.kind, set()) for fault in plan.faults))
    require(needed, missing_capabilities(), plan.name)


class Measurement:
    """
    One plan, carried out and measured in a lab that is at rest.

    Args:
        plan: What to do; its instants move behind the start of the lab as a whole.
        spaces, members: The lab, up.
        folder: For the prober's files.
        record, on_progress, ip_version: As `run_kernel`.
    """

    def __init__(
        self,
        plan: Plan,
        spaces: Spaces,
        members: Members,
        folder: Path,
        *,
        record: Record,
        on_progress: Callable[[int], None],
        ip_version: int = 4,
    ) -> None:
        self._plan = plan
        self._spaces = spaces
        self._members = members
        self._folder = folder
        self._on_progress = on_progress
        self._ip_version = ip_version
        self._start_ns = time.monotonic_ns()
        self._merger = Merger(record, WINDOW_NS)
        self._chosen: Chosen
        self._probing: Probing
        self._notes: Notes | None = None
        self._said: list[Said] = []
        self._operator: Operator | None = None
        self._breakages: dict[str, Breakage] = {}
        self._affected: dict[str, dict[int, Trace]] = {}
        """By fault, the way of each flow that it may harm, as it was before."""
        self._calls: dict[str, tuple[int, int]] = {}
        """Around the calls that made each fault."""
        self._occurrences: list[Occurrence] = []

    def now_ns(self) -> int:
        """Return the instant, counted from the start of the run."""
        return time.monotonic_ns() - self._start_ns

    async def run(self) -> None:
        """Choose flows, probe them, break and mend, and write down what the probes saw."""
        self._choose()
        self._probing = Probing(self._spaces, self._chosen.flows, self._folder, ip_version=self._ip_version)
        try:
            await self._probing.start()
            await self._check_ways()
            late_ns = max(0, self.now_ns() - self._plan.measure_from_ns)
            if late_ns:
                self.note("run_delayed", {"by_ns": late_ns})
            self._plan = delayed(self._plan, late_ns)
            await self._wait_until(self._plan.measure_from_ns)
            self._note_start()
            async with self._operator_there():
                await self._carry_out()
            self._notes = await self._probing.stop()
        finally:
            await self._probing.abandon()
            await self._mend_everything()

    @contextlib.asynccontextmanager
    async def _operator_there(self) -> AsyncIterator[None]:
        """Have somebody on the bus who drains, if the plan has drains."""
        if not any(fault.kind is FaultKind.DRAIN for fault in self._plan.faults):
            yield
            return
        bus = MqttBus(self._members.bus_settings(), OPERATOR, rng=SystemRandom())
        self._operator = operator_on(bus, self._members.topics, self._note_drain, call_after)
        serving = asyncio.create_task(bus.run(), name="operator")
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _note_drain(self, event: str, fields: dict[str, object]) -> None:
        # Whether it is in effect, or over, is noted as that of any other fault.
        if event in ("drain_done", "undrain_done") or "reason" in fields:
            self.note(event, fields)

    def write_down(self) -> None:
        """Record what controller and agents noted at last, and what the probes saw. To be called once nobody notes anything more."""
        self._take_marks()
        if self._notes is not None:
            self._write_down(self._notes)
        self._merger.pass_on_all()

    def note(self, event: str, fields: dict[str, object], at_ns: int | None = None) -> None:
        """Record what happened."""
        self._merger.put(self.now_ns() if at_ns is None else at_ns, event, fields)

    # --- before -----------------------------------------------------------------------------------------------------------
    def _choose(self) -> None:
        plan = self._plan
        harmed = {fault.id: self._harmed(fault) for fault in plan.faults if fault.kind in TRAFFIC}
        self._chosen = choose_flows(
            plan.demands,
            harmed,
            lambda flows: trace(self._spaces, flows, self._ip_version),
            stream(plan.seed, "probes"),
        )
        if not self._chosen.flows:
            raise LabError("no flow of the demands has a way to its target, says the kernel")
        if self._chosen.skewed:
            ports = ", ".join(end.id for end in self._chosen.skewed)
            raise LabError(f"flows do not spread over equal paths: nearly none takes {ports}")

    def _harmed(self, fault: Fault) -> frozenset[LinkEnd]:
        return sending_ends(self._plan.fabric, fault, self._plan.links_hit(fault))

    async def _check_ways(self) -> None:
        """
        Hold what the kernels said of the flows' ways against what their interfaces count.

        Raises:
            LabError: a port sends less, or much more, than the flows that lead over it.
        """
        await asyncio.sleep(PREPARE_NS / SECOND)
        traces = self._traces()
        began_ns, before = time.monotonic_ns(), self._counters()
        await asyncio.sleep(COUNTED_NS / SECOND)
        after, lasted_ns = self._counters(), time.monotonic_ns() - began_ns
        expected: dict[LinkEnd, int] = {}
        for flow, found in zip(self._chosen.flows, traces, strict=True):
            if not found.is_whole:
                raise LabError(f'the fabric is not at rest: "{flow.source}" has lost its way to "{flow.target}"')
            for hop in found.hops:
                expected[hop.end] = expected.get(hop.end, 0) + 1
        sent = {end: after[end] - count for end, count in before.items()}
        # How often the prober really sent is told by the ports of its sources, whatever kept it.
        sources = {found.hops[0].end for found in traces}
        ticks = sum(sent[end] for end in sources) // sum(expected[end] for end in sources)
        bus = BUS_PACKETS_PER_S * len(self._plan.fabric.nodes) if self._plan.is_bus_in_band else 0
        others = (OTHER_PACKETS_PER_S + bus) * lasted_ns // SECOND
        for end, count in sorted(sent.items()):
            flows = expected.get(end, 0)
            if abs(count - ticks * flows) > ticks * flows * OFF_PPM // PPM + others:
                raise LabError(
                    f"port {end.id} sent {count} packets in {format_duration(lasted_ns)}, but {flows} flows lead over it,"
                    f" which makes {ticks * flows}: the kernel does not forward as it says"
                )

    def _counters(self) -> dict[LinkEnd, int]:
        found = {}
        for node in self._plan.fabric.nodes:
            found.update({end: sent for end, (_, sent) in self._spaces.counters(node).items()})
        return found

    def _traces(self) -> list[Trace]:
        return trace(self._spaces, self._chosen.flows, self._ip_version)

    def _note_start(self) -> None:
        counts: dict[str, int] = {demands.name: 0 for demands in self._plan.demands}
        for name in self._chosen.sets:
            counts[name] += 1
        self.note("measurement_started", {"flows": len(self._chosen.flows), "weights": counts, "is_sample": True})

    # --- meanwhile --------------------------------------------------------------------------------------------------------
    async def _carry_out(self) -> None:
        plan = self._plan
        for at_ns, is_begin, fault in occasions(plan):
            if is_begin:
                await self._wait_until(at_ns - PREPARE_NS)
                self._note_affected(fault)
            await self._wait_until(at_ns)
            await (self._begin(fault) if is_begin else self._end(fault))
        await self._wait_until(plan.duration_ns)

    async def _wait_until(self, at_ns: int) -> None:
        while (left_ns := at_ns - self.now_ns()) > 0:
            await asyncio.sleep(min(left_ns, POLL_NS) / SECOND)
            self._members.check()
            self._probing.check()
            if left_ns > POLL_NS:
                self._take_marks()
                self._merger.pass_on(self.now_ns())
                self._on_progress(self.now_ns())

    def _take_marks(self) -> None:
        marks = self._members.read_marks()
        self._said += said(marks)
        for at_ns, event, fields in marks:
            self.note(event, fields, at_ns - self._start_ns)

    def _note_affected(self, fault: Fault) -> None:
        harmed = self._harmed(fault) if fault.kind in TRAFFIC else frozenset()
        rows: list[list[object]] = []
        affected = {}
        for index, found in enumerate(self._traces() if harmed else ()):
            side = found.side(harmed)
            if side is not None:
                affected[index] = found
                rows.append([*flow_id(self._chosen.flows[index]), {self._chosen.sets[index]: 1}, PPM, side])
        self._affected[fault.id] = affected
        self.note("flows_affected", {"fault": fault.id, "flows": rows})

    async def _begin(self, fault: Fault) -> None:
        links = self._plan.links_hit(fault)
        breakage = breakage_of(fault, links, self._spaces, self._members, self._operator)
        self._breakages[fault.id] = breakage
        began_ns = self.now_ns()
        await breakage.begin()
        done_ns = self.now_ns()
        self._calls[fault.id] = began_ns, done_ns
        self.note("fault_injected", {"fault": fault.id, "kind": fault.kind.value}, began_ns)
        self._occurrences.append(Occurrence(began_ns, fault, is_begin=True, links=links))
        late_ns = began_ns - fault.at_ns
        if late_ns > LATE_NS:
            self.note("fault_not_effective", {"fault": fault.id, "reason": f"{format_duration(late_ns)} late"})
        if not await _holds(breakage.is_in_effect):
            self.note("fault_not_effective", {"fault": fault.id, "reason": "says the kernel"})
        elif fault.kind not in SILENT:
            # A port set down is down as soon as the call begins; whom a signal hits is gone when it returns.
            self.note("fault_effective", {"fault": fault.id}, began_ns if fault.kind in PHYSICAL else done_ns)

    async def _end(self, fault: Fault) -> None:
        breakage = self._breakages.pop(fault.id)
        if isinstance(breakage, Silence) and self._affected[fault.id] and not breakage.dropped():
            self.note("fault_not_effective", {"fault": fault.id, "reason": "nothing was dropped"})
        began_ns = self.now_ns()
        await breakage.end()
        self._occurrences.append(Occurrence(began_ns, fault, is_begin=False, links=self._plan.links_hit(fault)))
        is_over = await _holds(breakage.is_over)
        self.note("fault_ended" if is_over else "fault_not_ended", {"fault": fault.id}, began_ns)

    async def _mend_everything(self) -> None:
        """End what a run that broke off has left broken, so that the members can say goodbye."""
        for name in list(self._breakages):
            with contextlib.suppress(LabError, OSError):
                await self._breakages.pop(name).end()

    # --- after ------------------------------------------------------------------------------------------------------------
    def _write_down(self, notes: Notes) -> None:
        for occurrence in self._occurrences:
            if occurrence.is_begin and occurrence.fault.kind in PHYSICAL:
                self._note_effect(occurrence.fault, notes)
        lines = flow_lines(
            self._plan.fabric,
            self._chosen.flows,
            self._chosen.sets,
            notes.flows,
            self._on_probe_clock(),
            notes.interval_ns,
        )
        from_ns, until_ns = self._plan.measure_from_ns, self._plan.duration_ns
        for at_ns, event, fields in lines:
            # What was lost before the measurement began, or after it ended, is not of this run.
            if from_ns <= at_ns - self._start_ns <= until_ns:
                self.note(event, fields, at_ns - self._start_ns)
        self.note("probes_measured", self._summary(notes), until_ns)
        lost = sum(bool(record.gaps and record.gaps[-1].is_open) for record in notes.flows)
        self.note("measurement_finished", {"flows_below_full": lost}, until_ns)

    def _on_probe_clock(self) -> Iterator[Occurrence]:
        for one in self._occurrences:
            yield Occurrence(one.at_ns + self._start_ns, one.fault, one.is_begin, one.links)

    def _note_effect(self, fault: Fault, notes: Notes) -> None:
        began_ns, done_ns = (at_ns + self._start_ns for at_ns in self._calls[fault.id])
        affected = self._affected[fault.id]
        effective_ns = began_ns
        if fault.kind in SILENT:
            harmed = [notes.flows[index] for index in affected]
            found = effective_at(began_ns, done_ns, harmed, notes.sent_at_ns)
            effective_ns = done_ns if found is None else found
            self.note("fault_effective", {"fault": fault.id}, effective_ns - self._start_ns)
        ended_ns = min(
            (one.at_ns for one in self._occurrences if one.fault is fault and not one.is_begin),
            default=self._plan.duration_ns,
        )
        links = self._plan.links_hit(fault)
        rows = [
            [
                *flow_id(self._chosen.flows[chain.flow]),
                chain.node,
                *(
                    None if at_ns is None else at_ns - effective_ns
                    for at_ns in (chain.detected_ns, chain.fact_ns, chain.acknowledged_ns, chain.through_ns)
                ),
            ]
            for chain in chains(
                affected,
                self._harmed(fault),
                notes.flows,
                self._said,
                failed=frozenset(map(str, (*links, *fault.nodes))),
                effective_ns=effective_ns,
                until_ns=ended_ns + self._start_ns,
                interval_ns=notes.interval_ns,
            )
        ]
        self.note("chains_measured", {"fault": fault.id, "interval_ns": notes.interval_ns, "flows": rows})

    def _summary(self, notes: Notes) -> dict[str, object]:
        flagged: Mapping[str, list[list[str]]] = {fault.id: [] for fault in self._plan.faults}
        for fault in self._plan.faults:
            for index in self._affected.get(fault.id, ()):
                found = outage_in(
                    notes.flows[index],
                    fault.at_ns + self._start_ns,
                    fault.end_at_ns + self._start_ns,
                    notes.interval_ns,
                )
                if found is not None and found[1]:
                    flagged[fault.id].append(list(flow_id(self._chosen.flows[index])))
        return {
            "ip_version": self._ip_version,
            "interval_ns": notes.interval_ns,
            "sent": sum(record.sent for record in notes.flows),
            "lost": sum(record.lost for record in notes.flows),
            "duplicates": sum(record.duplicates for record in notes.flows),
            "reordered": sum(record.reordered for record in notes.flows),
            "refused": notes.refused,
            "late_p99_ns": notes.late_p99_ns,
            "late_max_ns": notes.late_max_ns,
            "cpu_ppm": notes.cpu_ppm,
            "several_gaps": flagged,
        }


async def _holds(condition: Callable[[], bool]) -> bool:
    """Return whether *condition* comes to hold in time."""
    deadline_ns = time.monotonic_ns() + EFFECT_NS
    while not condition():
        if time.monotonic_ns() > deadline_ns:
            return False
        await asyncio.sleep(0.005)
    return True
