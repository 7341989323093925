"""How would a fabric without ERFS have taken it? Delays of other systems as data, each with its source.

Rule 1: a behaviour is a table of delays; what forwarding does with them is in `erfs_scenario.baselines`.
Rule 2: validated are only delays measured by us on real packets; whatever else there is says where it is from.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from erfs.units import MS, SECOND, US

_LAB: Final = "measured here: FRR 8.4, k=4 fat-tree of 20 switch namespaces, kernel forwarding, medians of 10 trials"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """
    One system's delays, all counted from the change of the link. None: never.

    Args:
        name: As reports call it.
        near_end_ns: Until a node that lost a carrier no longer uses that port, where its group has another.
        carrier_ns: Until the whole fabric forwards around a link that lost its carrier.
        node_ns: The same for a switch without power.
        silent_ns: The same for a link that carries nothing one way or both, carriers up.
        loss_noticed_min_ppm: From which random loss on a link is taken for silence; None: however much is lost, it is used.
        return_ns: Until a link that works again is used again; nothing is lost by that.
        is_validated: Whether carrier, node and silence are our own measurements on real packets.
        source: Where the figures are from.
    """

    name: str
    near_end_ns: int | None
    carrier_ns: int | None
    node_ns: int | None
    silent_ns: int | None
    loss_noticed_min_ppm: int | None
    return_ns: int
    is_validated: bool
    source: str


# (switches, until the last table was set after one cut): OpenSM 3.3.23 on ibsim 0.10, trap delivered, no wire delay.
_OPENSM_SWEEPS: Final = ((20, 5_850 * US), (80, 36_500 * US), (320, 387 * MS), (720, 2_100 * MS))


def opensm_sweep_ns(switches: int) -> int:
    """Return how long OpenSM takes from a trap to its last table on a fabric of so many *switches*: between two measured sizes along a power law."""
    size = max(switches, 1)
    for (small, small_ns), (large, large_ns) in pairwise(_OPENSM_SWEEPS):
        if size <= large or large == _OPENSM_SWEEPS[-1][0]:
            exponent: float = math.log(large_ns / small_ns) / math.log(large / small)
            return round(small_ns * math.pow(size / small, exponent))
    raise AssertionError("unreachable: the last pair takes every size")


def behaviours(switches: int) -> Mapping[str, Behaviour]:
    """Return the behaviours by name, for a fabric of so many *switches*."""
    found = (
        Behaviour(
            "static",
            near_end_ns=None,
            carrier_ns=None,
            node_ns=None,
            silent_ns=None,
            loss_noticed_min_ppm=None,
            return_ns=0,
            is_validated=False,
            source="by definition: equal-cost groups that nobody changes until the repair",
        ),
        Behaviour(
            "ospf",
            near_end_ns=2 * MS,
            carrier_ns=13_400 * US,
            node_ns=13_400 * US,
            silent_ns=35 * SECOND,
            loss_noticed_min_ppm=None,
            return_ns=10 * SECOND,
            is_validated=True,
            source=f"{_LAB}: link down 12.9 and 13.9 ms, silence 35 s (RFC 2328: hello 10 s, dead 40 s), near end 2.0 ms by the kernel "
            "alone; a switch without power taken as its links; 1 % loss not noticed, heavier loss not measured with these timers; "
            "return: one hello interval, our choice",
        ),
        Behaviour(
            "bgp",
            near_end_ns=2 * MS,
            carrier_ns=125 * MS,
            node_ns=125 * MS,
            silent_ns=165 * SECOND,
            loss_noticed_min_ppm=None,
            return_ns=30 * SECOND,
            is_validated=False,
            source=f"{_LAB}: silence 165 s with FRR's traditional profile (hold 180 s, keepalive 60 s; RFC 4271 suggests 90 s and 30 s); "
            "link down 125 ms was measured with BFD and advertisement interval 0 and is a lower bound here; return: one advertisement "
            "interval of RFC 4271, our choice",
        ),
        Behaviour(
            "frr-tuned",
            near_end_ns=2 * MS,
            carrier_ns=18_500 * US,
            node_ns=48_750 * US,
            silent_ns=42_450 * US,
            loss_noticed_min_ppm=300_000,
            return_ns=5 * SECOND,
            is_validated=True,
            source=f"{_LAB}: OSPF with BFD 10 ms x 3, SPF throttle 0/10/50 ms, LSA throttle 0: link down 17.4 and 19.6 ms, silence 40.8 and "
            "44.1 ms, a switch isolated 45.5 and 52 ms, loss of 30 % noticed (and flapping, which is left out), of 1 % not; "
            "return: its longest wait, our choice",
        ),
        Behaviour(
            "opensm",
            near_end_ns=None,
            carrier_ns=opensm_sweep_ns(switches),
            node_ns=opensm_sweep_ns(switches),
            silent_ns=5 * SECOND + opensm_sweep_ns(switches),
            loss_noticed_min_ppm=None,
            return_ns=opensm_sweep_ns(switches),
            is_validated=False,
            source="measured here on a simulated InfiniBand fabric (OpenSM 3.3.23, ibsim 0.10, no wire delay): 5.6-6.1 ms with 20 switches, "
            "36-37 ms with 80, 361-413 ms with 320, 2.1 s with 720, between them a power law; without a trap half of its sweep interval "
            "of 10 s before that (measured: 3.4-5.3 s); the spread of its single paths is taken as equal-cost groups",
        ),
    )
    return {behaviour.name: behaviour for behaviour in found}
