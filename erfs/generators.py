"""Which fabric a few numbers describe: fat-tree, leaf-spine, rail-optimised, dragonfly, torus.

Rule 1: equal parameters give equal fabrics; there is no chance in here.
Rule 2: scenario files and the command line share the parameter models below, so both accept and refuse the same.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from erfs.errors import FabricError
from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind
from erfs.ids import NodeId, SrlgId
from erfs.units import GBPS

# Ten times the largest cluster anyone has announced (100,000 accelerators, one port each): more is a typing mistake.
LINK_COUNT_MAX: Final = 1_000_000


class _Params(BaseModel):
    """What every generator takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    access_gbps: int = Field(default=400, ge=1, le=10_000, description="capacity of each endpoint's link, in Gbit/s")
    trunk_gbps: int = Field(
        default=400, ge=1, le=10_000, description="capacity of each link between switches, in Gbit/s"
    )
    medium: Medium = Field(
        default=Medium.LOSSLESS,
        description="how links treat what they have no room for: lossless (InfiniBand, RoCE with PFC), lossy or unknown",
    )

    def link_count(self) -> int:
        """Return how many links the fabric will have; checked against LINK_COUNT_MAX before anything is built."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _is_buildable(self) -> "_Params":
        count = self.link_count()
        if count > LINK_COUNT_MAX:
            raise ValueError(f"these numbers make {count:,} links: at most {LINK_COUNT_MAX:,} are built")
        return self


class FatTreeParams(_Params):
    """A k-ary fat-tree of identical switches."""

    k: int = Field(
        default=4,
        ge=2,
        le=128,
        multiple_of=2,
        description="ports per switch, even: k pods, k^3/4 hosts, 5k^2/4 switches",
    )

    def link_count(self) -> int:
        return 3 * self.k**3 // 4


class LeafSpineParams(_Params):
    """A two-tier folded Clos."""

    leaves: int = Field(default=8, ge=1, le=4096, description="leaf switches")
    spines: int = Field(default=4, ge=1, le=1024, description="spine switches, each joined to every leaf")
    hosts_per_leaf: int = Field(default=4, ge=1, le=512, description="hosts whose first port is on one leaf")
    cables: int = Field(default=1, ge=1, le=64, description="parallel cables between each leaf and each spine")
    attachments: int = Field(
        default=1,
        ge=1,
        le=2,
        description="leaves each host attaches to; with 2 leaves form pairs (0 and 1, 2 and 3, ...)",
    )

    def link_count(self) -> int:
        return self.leaves * (self.spines * self.cables + self.hosts_per_leaf * self.attachments)

    @model_validator(mode="after")
    def _leaves_form_pairs(self) -> "LeafSpineParams":
        if self.attachments == 2 and self.leaves % 2:
            raise ValueError(f"attachments: 2 needs an even number of leaves, not {self.leaves}")
        return self


class RailParams(_Params):
    """A rail-optimised cluster: NIC r of every host of a group is on that group's leaf r.

    The defaults are two scalable units of the DGX SuperPOD H100 reference architecture: 64 hosts of 8 NICs, 16 leaves,
    8 spines, 512 trunk cables.
    """

    hosts: int = Field(default=64, ge=1, le=20_000, description="hosts")
    nics_per_host: int = Field(default=8, ge=1, le=16, description="NICs per host, which is the number of rails")
    hosts_per_group: int = Field(
        default=32, ge=1, le=512, description="hosts that share one set of leaves (a scalable unit)"
    )
    spines: int = Field(default=8, ge=1, le=1024, description="spine switches, each joined to every leaf")
    cables: int = Field(default=4, ge=1, le=64, description="parallel cables between each leaf and each spine")
    hosts_per_rack: int = Field(default=4, ge=1, le=64, description="hosts that share a rack and its power")

    @property
    def groups(self) -> int:
        """How many groups the hosts fill."""
        return math.ceil(self.hosts / self.hosts_per_group)

    def link_count(self) -> int:
        return self.nics_per_host * (self.hosts + self.groups * self.spines * self.cables)


class DragonflyParams(_Params):
    """Groups of fully meshed switches, every pair of groups joined (Kim et al., ISCA 2008)."""

    switches_per_group: int = Field(default=4, ge=1, le=128, description="switches in a group, fully meshed (a)")
    hosts_per_switch: int = Field(default=2, ge=1, le=128, description="hosts on a switch (p)")
    global_links_per_switch: int = Field(default=2, ge=1, le=128, description="ports of a switch for other groups (h)")
    groups: int = Field(default=0, ge=0, le=16_385, description="groups (g); 0 means as many as fit, a*h+1")

    @property
    def group_count(self) -> int:
        """The number of groups, worked out if it was left to us."""
        return self.groups or self.switches_per_group * self.global_links_per_switch + 1

    @property
    def cables_per_pair(self) -> int:
        """Links between two groups; ports that don't divide evenly stay empty."""
        return self.switches_per_group * self.global_links_per_switch // max(1, self.group_count - 1)

    def link_count(self) -> int:
        groups, switches = self.group_count, self.switches_per_group
        local = groups * switches * (switches - 1) // 2
        return local + groups * (groups - 1) // 2 * self.cables_per_pair + groups * switches * self.hosts_per_switch

    @model_validator(mode="after")
    def _groups_can_all_meet(self) -> "DragonflyParams":
        most = self.switches_per_group * self.global_links_per_switch + 1
        if self.group_count > most:
            raise ValueError(f"groups: {self.groups} cannot all be joined: a*h+1 = {most} at most")
        return self


def _split_dims(value: object) -> object:
    return [part.strip() for part in value.lower().replace(",", "x").split("x")] if isinstance(value, str) else value


class TorusParams(_Params):
    """A torus of switches; a dimension of size 2 has one cable, not two."""

    dims: Annotated[tuple[Annotated[int, Field(ge=2, le=1024)], ...], BeforeValidator(_split_dims)] = Field(
        default=(4, 4, 4), min_length=1, max_length=6, description="switches along each dimension, such as 4x4x4"
    )
    hosts_per_switch: int = Field(default=1, ge=1, le=128, description="hosts on a switch")

    def link_count(self) -> int:
        switches = math.prod(self.dims)
        return switches * self.hosts_per_switch + sum(switches if dim > 2 else switches // 2 for dim in self.dims)


def fat_tree(params: FatTreeParams) -> Fabric:
    """
    Return the k-ary fat-tree: k pods of k/2 edge and k/2 aggregation switches, k^2/4 cores, k/2 hosts on every edge switch.

    Aggregation switch i of every pod and the cores it reaches form plane i. Shared-risk groups: the rack of an edge switch
    (its hosts' power), and the tray that carries a pod's cables to one plane.

    Source: Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """
    half = params.k // 2
    draft = _Draft(params)
    for plane, member in itertools.product(range(half), repeat=2):
        draft.switch(f"core{plane}-{member}", plane=plane)
    for pod in range(params.k):
        for plane in range(half):
            aggregation = draft.switch(f"pod{pod}-agg{plane}", pod=pod, plane=plane)
            for member in range(half):
                draft.trunk(aggregation, NodeId(f"core{plane}-{member}"), f"tray:pod{pod}-plane{plane}")
        for rack in range(half):
            edge = draft.switch(f"pod{pod}-edge{rack}", pod=pod, rack=f"pod{pod}-rack{rack}")
            for plane in range(half):
                draft.trunk(edge, NodeId(f"pod{pod}-agg{plane}"), f"tray:pod{pod}-rack{rack}")
            for index in range(half):
                host = draft.endpoint(f"pod{pod}-edge{rack}-host{index}", pod=pod, rack=f"pod{pod}-rack{rack}")
                draft.access(host, edge, f"power:pod{pod}-rack{rack}")
    return draft.fabric(f"fat-tree k={params.k}")


def leaf_spine(params: LeafSpineParams) -> Fabric:
    """
    Return a leaf-spine fabric.

    With two attachments a host reaches its leaf and that leaf's neighbour, as in an MLAG pair. Shared-risk groups: the rack of
    a leaf (its hosts' power), the tray of a leaf's uplinks, and the bundle of parallel cables between two switches.
    """
    draft = _Draft(params)
    spines = [draft.switch(_numbered("spine", index, params.spines)) for index in range(params.spines)]
    leaves = [
        draft.switch(_numbered("leaf", index, params.leaves), rack=_numbered("rack", index, params.leaves))
        for index in range(params.leaves)
    ]
    for leaf, spine in itertools.product(leaves, spines):
        for _ in range(params.cables):
            draft.trunk(leaf, spine, f"tray:{leaf}", *_bundle(params.cables, leaf, spine))
    for index, leaf in enumerate(leaves):
        rack = _numbered("rack", index, params.leaves)
        for member in range(params.hosts_per_leaf):
            host = draft.endpoint(f"{leaf}-{_numbered('host', member, params.hosts_per_leaf)}", rack=rack)
            for attachment in range(params.attachments):
                draft.access(host, leaves[index ^ attachment], f"power:{rack}")
    return draft.fabric(f"leaf-spine {params.leaves}x{params.spines}")


def rail_optimised(params: RailParams) -> Fabric:
    """
    Return a rail-optimised cluster: every NIC is a node ("h07-nic3", host h07, rail 3), one leaf per rail and group, spines.

    Shared-risk groups: the rack (its hosts' power), the tray that carries a group's cables to one spine, and the bundle of
    parallel cables between a leaf and a spine.

    Source: NVIDIA, "DGX SuperPOD reference architecture, H100", compute fabric.
    """
    draft = _Draft(params)
    spines = [draft.switch(_numbered("spine", index, params.spines)) for index in range(params.spines)]
    for group in range(params.groups):
        pod = _numbered("su", group, params.groups)
        for rail in range(params.nics_per_host):
            leaf = draft.switch(f"{pod}-leaf{rail}", pod=pod, rail=rail)
            for spine in spines:
                for _ in range(params.cables):
                    draft.trunk(leaf, spine, f"tray:{pod}-{spine}", *_bundle(params.cables, leaf, spine))
    for index in range(params.hosts):
        host = f"h{index:0{max(2, len(str(params.hosts - 1)))}}"
        rack = f"rack{index // params.hosts_per_rack:0{max(2, len(str(params.hosts // params.hosts_per_rack)))}}"
        pod = _numbered("su", index // params.hosts_per_group, params.groups)
        for rail in range(params.nics_per_host):
            nic = draft.endpoint(f"{host}-nic{rail}", NodeKind.NIC, host=host, rail=rail, rack=rack, pod=pod)
            draft.access(nic, NodeId(f"{pod}-leaf{rail}"), f"power:{rack}")
    return draft.fabric(f"rail {params.hosts}x{params.nics_per_host}")


def dragonfly(params: DragonflyParams) -> Fabric:
    """
    Return a dragonfly: groups of fully meshed switches, every two groups joined by the same number of links.

    Global ports are dealt out in order ("absolute arrangement"): channel n of a group leads to its n-th other group.
    Shared-risk groups: a group's rack power (hosts), its local tray, and the tray of each pair of groups.

    Source: Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
    """
    groups, switches, cables = params.group_count, params.switches_per_group, params.cables_per_pair
    draft = _Draft(params)
    names = [[f"{_numbered('g', group, groups)}-s{index}" for index in range(switches)] for group in range(groups)]
    for group in range(groups):
        pod = _numbered("g", group, groups)
        for name in names[group]:
            switch = draft.switch(name, pod=pod)
            for index in range(params.hosts_per_switch):
                draft.access(draft.endpoint(f"{name}-host{index}", pod=pod), switch, f"power:{pod}")
        for one, other in itertools.combinations(names[group], 2):
            draft.trunk(NodeId(one), NodeId(other), f"tray:{pod}")
    for one_group, other_group in itertools.combinations(range(groups), 2):
        for cable in range(cables):
            # Seen from a group, its peers are the other groups in order; itself is left out of the count.
            from_one = ((other_group - 1) * cables + cable) // params.global_links_per_switch
            from_other = (one_group * cables + cable) // params.global_links_per_switch
            tray = f"tray:{_numbered('g', one_group, groups)}-{_numbered('g', other_group, groups)}"
            draft.trunk(NodeId(names[one_group][from_one]), NodeId(names[other_group][from_other]), tray)
    return draft.fabric(f"dragonfly a={switches} h={params.global_links_per_switch} g={groups}")


def torus(params: TorusParams) -> Fabric:
    """
    Return a torus of any number of dimensions.

    Shared-risk groups: the power of each switch's hosts, and the tray of each ring.
    """
    draft = _Draft(params)

    def name(at: tuple[int, ...]) -> NodeId:
        return NodeId("t" + "-".join(f"{x:0{len(str(dim - 1))}}" for x, dim in zip(at, params.dims, strict=True)))

    places = list(itertools.product(*(range(dim) for dim in params.dims)))
    for at in places:
        switch = draft.switch(name(at), **{f"dim{axis}": x for axis, x in enumerate(at)})
        for index in range(params.hosts_per_switch):
            draft.access(draft.endpoint(f"{name(at)}-host{index}"), switch, f"power:{switch}")
    for at in places:
        for axis, dim in enumerate(params.dims):
            if dim == 2 and at[axis] == 1:
                continue  # the cable from 0 to 1 is there already; a second one would be a parallel cable
            after = (*at[:axis], (at[axis] + 1) % dim, *at[axis + 1 :])
            ring = (*at[:axis], 0, *at[axis + 1 :])
            draft.trunk(name(at), name(after), f"tray:dim{axis}-{name(ring)}")
    return draft.fabric("torus " + "x".join(map(str, params.dims)))


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of fabric that can be made: the parameters it takes, and the function that makes it."""

    kind: str
    params: type[_Params]
    build: Callable[[Any], Fabric]

    @property
    def summary(self) -> str:
        """One line for help texts."""
        return (self.params.__doc__ or "").partition("\n")[0].rstrip(".")


GENERATORS: Final[dict[str, Generator]] = {
    generator.kind: generator
    for generator in (
        Generator("fat-tree", FatTreeParams, fat_tree),
        Generator("leaf-spine", LeafSpineParams, leaf_spine),
        Generator("rail", RailParams, rail_optimised),
        Generator("dragonfly", DragonflyParams, dragonfly),
        Generator("torus", TorusParams, torus),
    )
}


def generate(kind: str, params: Mapping[str, object]) -> Fabric:
    """
    Return the fabric of *kind* ("fat-tree", "leaf-spine", "rail", "dragonfly", "torus") with *params*.

    Raises:
        FabricError: no such kind.
        pydantic.ValidationError: *params* are not those of this kind, or out of bounds.

    Cost: O(nodes + links).
    """
    generator = GENERATORS.get(kind)
    if generator is None:
        raise FabricError(f'there is no generator "{kind}": expected one of {", ".join(GENERATORS)}')
    return generator.build(generator.params.model_validate(dict(params)))


class _Draft:
    """A fabric in the making: hands out port numbers in the order links are drawn."""

    def __init__(self, params: _Params) -> None:
        self._params = params
        self._nodes: list[Node] = []
        self._links: list[Link] = []
        self._ports: dict[NodeId, int] = {}

    def switch(self, name: str, **labels: object) -> NodeId:
        return self._node(name, NodeKind.SWITCH, labels)

    def endpoint(self, name: str, kind: NodeKind = NodeKind.HOST, **labels: object) -> NodeId:
        return self._node(name, kind, labels)

    def trunk(self, one: NodeId, other: NodeId, *srlgs: str) -> None:
        self._link(one, other, self._params.trunk_gbps, srlgs)

    def access(self, endpoint: NodeId, switch: NodeId, *srlgs: str) -> None:
        self._link(endpoint, switch, self._params.access_gbps, srlgs)

    def fabric(self, name: str) -> Fabric:
        return Fabric(self._nodes, self._links, name=name).with_inferred_tiers()

    def _node(self, name: str, kind: NodeKind, labels: Mapping[str, object]) -> NodeId:
        node = NodeId(name)
        self._nodes.append(Node(node, kind, labels={key: str(value) for key, value in labels.items()}))
        self._ports[node] = 0
        return node

    def _link(self, one: NodeId, other: NodeId, gbps: int, srlgs: Iterable[str]) -> None:
        ends = []
        for node in (one, other):
            self._ports[node] += 1
            ends.append(LinkEnd(node, str(self._ports[node])))
        self._links.append(
            Link.between(
                *ends, capacity_bps=gbps * GBPS, medium=self._params.medium, srlgs=(SrlgId(srlg) for srlg in srlgs)
            )
        )


def _numbered(name: str, index: int, count: int) -> str:
    """Return *name* and *index*, padded so that *count* of them sort in order."""
    return f"{name}{index:0{len(str(count - 1))}}"


def _bundle(cables: int, leaf: NodeId, spine: NodeId) -> tuple[str, ...]:
    """Return the shared-risk group of parallel cables; a single cable shares nothing."""
    return (f"bundle:{leaf}-{spine}",) if cables > 1 else ()
