"""What each fault cost, piece by piece, and what that would be without acceleration; on journals short enough to add up by hand."""

from typing import Any

import pytest

from erfs_scenario.costs import Lost, Owed, Piece, Weight, costs_by_fault, down_by_fault, weights_by_nature
from erfs_scenario.timeline import Attribution, Timeline, attribute, read_timeline

Record = dict[str, Any]
PPM = 1_000_000


def fault(name: str, at_ns: int, end_ns: int, natural_ns: int | None = None) -> Record:
    found = {"id": name, "kind": "link_down", "at_ns": at_ns, "end_at_ns": end_ns, "links_hit": ["x|y"]}
    return found if natural_ns is None else found | {"natural_ns": natural_ns}


def run(
    faults: list[Record], *changes: tuple[int, int, str], rates: tuple[Record, ...] = ()
) -> tuple[Timeline, Attribution]:
    """Return a run to 1,000 ns whose one flow of ten demands, affected by all *faults*, goes through *changes* (from, share in %, cause)."""
    records: list[Record] = [
        {"at_ns": 0, "event": "run_started", "faults": faults, "rates": list(rates)},
        {"at_ns": 0, "event": "measurement_started", "flows": 1, "weights": {"all": 10}},
        {"at_ns": 1_000, "event": "measurement_finished"},
    ]
    for one in faults:
        rows = [["@a", "@b", {"all": 10}, PPM, "near"]]
        records.append({"at_ns": one["at_ns"], "event": "flows_affected", "fault": one["id"], "flows": rows})
        records.append({"at_ns": one["at_ns"], "event": "fault_effective", "fault": one["id"]})
        records.append({"at_ns": one["end_at_ns"], "event": "fault_ended", "fault": one["id"]})
    for at_ns, percent, cause in changes:
        fields = {"source": "@a", "destination": "@b", "served_ppm": percent * 10_000, "cause": cause}
        records.append({"at_ns": at_ns, "event": "flow_changed", "weights": {"all": 10}} | fields)
    timeline = read_timeline(sorted(records, key=lambda record: record["at_ns"]))
    return timeline, attribute(timeline)


def pieces(faults: list[Record], *changes: tuple[int, int, str]) -> list[Piece]:
    timeline, outages = run(faults, *changes)
    owed = Owed(timeline, outages)
    return [piece for outage in timeline.outages for piece in owed.pieces_of(outage)]


def test_what_is_over_before_its_fault_is_a_recovery_and_what_lasts_as_long_is_repaired() -> None:
    repaired = pieces([fault("f", 100, 500)], (100, 0, "not_recovered"), (500, 100, "served"))
    recovered = pieces([fault("f", 100, 500)], (100, 0, "not_recovered"), (130, 100, "served"))
    assert repaired == [Piece(100, 500, "f", is_lasting=True)]
    assert recovered == [Piece(100, 130, "f", is_lasting=False)]


def test_what_goes_on_after_the_repair_does_not_last_longer_for_a_longer_repair() -> None:
    found = pieces([fault("f", 100, 500)], (100, 0, "cut"), (520, 100, "served"))
    assert found == [Piece(100, 500, "f", is_lasting=True), Piece(500, 520, "f", is_lasting=False)]


def test_a_loss_at_the_return_is_owed_to_what_returned() -> None:
    found = pieces([fault("f", 100, 500)], (500, 0, "not_recovered"), (530, 100, "served"))
    assert found == [Piece(500, 530, "f", is_lasting=False)]


def test_an_outage_that_outlasts_one_fault_is_owed_to_the_next_that_it_outlasts() -> None:
    faults = [fault("f", 100, 300), fault("g", 200, 700), fault("h", 250, 950)]
    found = pieces(faults, (100, 0, "not_recovered"), (700, 100, "served"))
    assert found == [Piece(100, 300, "f", is_lasting=True), Piece(300, 700, "g", is_lasting=True)]


def test_what_no_fault_began_is_owed_to_none() -> None:
    assert pieces([fault("f", 500, 700)], (50, 0, "cut"), (60, 100, "served")) == [Piece(50, 60, None, is_lasting=True)]


def test_the_costs_of_a_fault_are_demand_time_by_share_by_path_and_in_full() -> None:
    """Ten demands: 100 ns at half, 100 ns cut."""
    timeline, outages = run([fault("f", 100, 500)], (100, 50, "not_recovered"), (200, 0, "cut"), (300, 100, "served"))
    assert costs_by_fault(timeline, outages) == {"f": Lost(of_all=1_500, with_path=500, in_full=1_000)}
    assert down_by_fault(timeline, outages, "all") == {"f": 200}
    assert down_by_fault(timeline, outages, "nobody") == {}


RATES = ({"name": "drawn", "acceleration": 60},)


def test_a_repair_weighs_as_in_nature_and_a_recovery_sixty_times_less() -> None:
    timeline, _ = run([fault("drawn#1", 100, 500, 400 * 60), fault("stated", 600, 700)], rates=RATES)
    weights = weights_by_nature(timeline)
    assert not isinstance(weights, str)
    lasting, passing = weights["drawn#1"]
    assert (lasting.of(400), passing.of(600)) == (400, 10)
    assert weights["stated"] == (Weight(), Weight())


def test_a_lengthened_repair_weighs_less_and_one_cut_short_more() -> None:
    timeline, _ = run([fault("drawn#1", 100, 500, 60), fault("drawn#2", 600, 700, 200 * 60)], rates=RATES)
    weights = weights_by_nature(timeline)
    assert not isinstance(weights, str)
    assert weights["drawn#1"][0].of(400) == 1
    assert weights["drawn#2"][0].of(100) == 200


@pytest.mark.parametrize(
    ("faults", "rates", "reason"),
    [
        ([fault("drawn#1", 100, 500)], RATES, "scaled unlike each other"),
        ([fault("stated", 100, 500)], (), "no fault was drawn at a rate"),
    ],
)
def test_without_natural_repairs_there_is_no_projection(
    faults: list[Record], rates: tuple[Record, ...], reason: str
) -> None:
    timeline, _ = run(faults, rates=rates)
    found = weights_by_nature(timeline)
    assert isinstance(found, str)
    assert reason in found
