"""How a node shares what goes to a destination among its next hops: by the capacity that remains behind each of them.

Rule 1: weights are small integers found in integer arithmetic, so equal inputs give equal weights on every machine.
Rule 2: the weights before are an argument: a group keeps them while they are good enough, so weights do not chatter.
Rule 3: what is alike for all destinations of a node is told from counts of bits; destinations are looked at one by one only where it is not.

The value of link-end u->v towards d is capacity(u->v) * f(v, d) with f(v, d) = min(1, B(v, d) / arriving(v)). B is the summed capacity of
v's own next hops towards d, *what remains behind v*; *arriving* is the capacity as built by which v can be given such traffic: of its down
link-ends and access links where v sends up, of its up link-ends where it sends down (of its down ones where it has no up ones), of
everything where valleys are allowed. f = 1 where v delivers. So a leaf that lost half its uplinks is given half the traffic, and as
arriving never changes, a failure elsewhere changes nothing here.

Other definitions: BGP's link bandwidth (draft-ietf-idr-link-bandwidth) and UCMP cumulate capacity over the whole path, which needs an
announcement per hop or a sum over all paths, and counts a link once for each path over it; WCMP (Zhou et al., EuroSys 2014) takes the
capacity of the whole downstream tree. With equal speeds, in a Clos fabric, one hop of look-ahead gives what those give for a failure at the next
hop itself. It does not see capacity that is lost two hops away while every next hop there remains: of two parallel cables one, say.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfs.paths.bits import WORD_BITS, Bits, Indices, Words, has_any, packed, positions, unpacked
from erfs.paths.mesh import Mesh, run_starts, runs
from erfs.paths.next_hops import NextHops, Touched

# The largest weight of a member. A switch chip holds weights by repeating members in a table of some ten thousand entries that all groups
# share (WCMP, EuroSys 2014), so 16 times 64 members for one group is as much as is fair; Linux would hold 256 (one byte less one).
WEIGHT_MAX: Final = 16
# A weight may be so far from its ideal before the group is weighed again, in halves of the smallest step: 1.5 of 16. More than the half step
# that rounding leaves, so that nothing moves to and fro between two neighbours; one uplink of eleven may be lost unnoticed.
TOLERANCE_HALVES: Final = 3
# In units of the common speed. Three such factors, and what the comparisons multiply them by, stay within 63 bits.
CAPACITY_MAX: Final = 1 << 17

# Members looked at one by one at once: what is known of them stays in the cache, and in memory even if all of a large fabric is in doubt.
BLOCK_PAIRS: Final = 64 * 1024

Weight = NDArray[np.uint8]
_DOWN, _UP = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """
    All weights of one state that are not equal within their group. A value: what is given as *previous* next time.

    Args:
        node, column: Per group the node and the destination, in this order.
        start: Where each group's weights start; one more entry than groups.
        weight: For each group the weights of all link-ends of its node, 0 where they are no next hops.
    """

    node: Indices
    column: Indices
    start: Indices
    weight: Weight

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Weights)
            and np.array_equal(self.node, other.node)
            and np.array_equal(self.column, other.column)
            and np.array_equal(self.weight, other.weight)
        )

    __hash__ = None  # type: ignore[assignment]

    def of_node(self, node: int) -> tuple[Indices, Weight]:
        """Return the destinations towards which *node* shares unequally, rising, and for each the weights of its link-ends."""
        first, last = np.searchsorted(self.node, [node, node + 1])
        count = last - first
        return self.column[first:last], self.weight[self.start[first] : self.start[last]].reshape(
            count, -1 if count else 0
        )

    def moved(self, node_of: Indices, column_of: Indices) -> "Weights":
        """
        Return the same weights under other numbers.

        Args:
            node_of: Per old node its new number, with the same link-ends; -1 if it is gone.
            column_of: Per old destination its new number; -1 if it is gone.
        """
        node, column = node_of[self.node], column_of[self.column]
        kept = np.flatnonzero((node >= 0) & (column >= 0))
        kept = kept[np.lexsort((column[kept], node[kept]))]
        places, start = runs(self.start[kept], self.start[kept + 1])
        return Weights(node[kept], column[kept], start, self.weight[places])


_NO_GROUPS: Final = np.zeros(0, dtype=np.int64)
EQUAL: Final = Weights(_NO_GROUPS, _NO_GROUPS, np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8))


class Ground:
    """
    What of a mesh the weights depend on that never changes. Immutable, found once a layout.

    A *side* is what one node sends one way: side 2 * node + 1 is its up link-ends, 2 * node the others; where valleys are allowed all are on
    side 2 * node. A *bundle* is what several sides have in common: the same neighbours by the same capacities, as all leaves of a pod have.

    Args:
        hops: Next hops on the mesh; with nothing out of use if *usual* is not given.
        arrivals_bps: Nodes that others send to x 2: what can arrive that is then sent down, and up.
        usual: Per side of these nodes the most that remains behind it as built, if it is known from another layout. A reference only: it
            decides what has to be looked at, not what comes out.

    Cost: O(link-ends), and without *usual* that of `remains`.
    """

    def __init__(self, hops: NextHops, arrivals_bps: Indices, usual: Indices | None = None) -> None:
        mesh = self.mesh = hops.mesh
        is_up = mesh.is_up if hops.is_valley_free else np.zeros(len(mesh), dtype=np.bool_)
        self.side: Indices = 2 * mesh.source + is_up
        """Per link-end."""
        self.order: Indices = np.argsort(self.side, kind="stable")
        self.start: Indices = np.searchsorted(self.side[self.order], np.arange(2 * mesh.node_count + 1))
        """Where each side's link-ends start in `order`; one more entry than sides."""
        self.degree: Indices = np.diff(self.start)
        """Per side."""
        self._measure(arrivals_bps)
        self._bundle()
        self.usual: Indices = np.zeros(2 * mesh.node_count, dtype=np.int64)
        """Per side, the most that remains behind it as built."""
        self.usual[: 2 * mesh.transit_count] = self._usual(hops) if usual is None else usual
        self.is_uneven: Bits = np.stack([self._unevenness(phase) for phase in range(3)])
        """What the neighbour does (sends down, sends up, delivers) x bundles: whether the values of the link-ends differ even as built."""

    def _measure(self, arrivals_bps: Indices) -> None:
        mesh = self.mesh
        trunk_bps = mesh.capacity_bps[mesh.trunk >= 0]
        bps = np.concatenate([trunk_bps, arrivals_bps.ravel()])
        unit = max(int(np.gcd.reduce(bps)), -(-int(bps.max(initial=0)) // CAPACITY_MAX), 1)
        self.capacity: Indices = np.maximum(1, mesh.capacity_bps // unit)
        """Per link-end, in units of the common speed; at least 1."""
        self.arriving: Indices = np.ones(2 * mesh.node_count, dtype=np.int64)
        """Per side."""
        self.arriving[: arrivals_bps.size] = np.maximum(1, arrivals_bps.ravel() // unit)
        sorted_capacity = self.capacity[self.order]
        sides = np.flatnonzero(self.degree)
        self.each: Indices = np.full(2 * mesh.node_count, -1, dtype=np.int64)
        """Per side, the capacity of each of its link-ends; -1 if they differ."""
        if len(sides):
            least = np.minimum.reduceat(sorted_capacity, self.start[sides])
            most = np.maximum.reduceat(sorted_capacity, self.start[sides])
            self.each[sides] = np.where(least == most, least, -1)

    def is_of(self, mesh: Mesh) -> bool:
        """Return whether *mesh* has the same link-ends, which is all that this depends on, given the topology."""
        return mesh is self.mesh or (
            mesh.node_count == self.mesh.node_count
            and np.array_equal(mesh.source, self.mesh.source)
            and np.array_equal(mesh.target, self.mesh.target)
        )

    def ends_of(self, sides: Indices) -> tuple[Indices, Indices]:
        """Return the link-ends of *sides*, side by side, and where each side's begin (one more entry than sides)."""
        places, begins = runs(self.start[sides], self.start[sides + 1])
        return self.order[places], begins

    def _bundle(self) -> None:
        mesh = self.mesh
        number_of: dict[tuple[int, bytes, bytes], int] = {}
        pattern: list[int] = []
        self.bundle: Indices = np.full(2 * mesh.node_count, -1, dtype=np.int64)
        """Per side; -1 without link-ends."""
        target, capacity, start = mesh.target[self.order], self.capacity[self.order], self.start.tolist()
        for side in np.flatnonzero(self.degree).tolist():
            part = slice(start[side], start[side + 1])
            key = side % 2, target[part].tobytes(), capacity[part].tobytes()
            number = number_of.setdefault(key, len(pattern))
            if number == len(pattern):
                pattern.append(side)
            self.bundle[side] = number
        self.pattern: Indices = np.array(pattern, dtype=np.int64)
        """Per bundle, the first side that has it."""
        ends, begins = self.ends_of(self.pattern)
        near = mesh.target[ends]
        leads_up = np.repeat((self.pattern & 1).astype(np.bool_), np.diff(begins))
        order = np.argsort(near, kind="stable")
        self.is_behind: Bits = np.zeros(2 * mesh.node_count, dtype=np.bool_)
        """Per side, whether it has link-ends, and some bundle leads to what it may send: to an up side only a bundle of up link-ends."""
        self.is_behind[2 * near + _DOWN] = True
        self.is_behind[2 * near[leads_up] + _UP] = True
        self.is_behind &= self.bundle >= 0
        self._bundles_by_target = np.repeat(np.arange(len(pattern)), np.diff(begins))[order]
        self._target_start = np.searchsorted(near[order], np.arange(mesh.node_count + 1))

    def bundles_to(self, nodes: Indices) -> Indices:
        """Return the bundles that lead to some of *nodes*, rising."""
        places, _ = runs(self._target_start[nodes], self._target_start[nodes + 1])
        return np.unique(self._bundles_by_target[places])

    def _usual(self, hops: NextHops) -> Indices:
        usual = np.zeros(2 * self.mesh.node_count, dtype=np.int64)
        sides, words = everything(hops)
        behind = remains(hops, self, sides, words, hops.reached, is_everything=True)
        np.maximum.at(usual, sides, behind.flat)
        np.maximum.at(usual, sides[behind.rough], behind.sums.max(axis=1, initial=0))
        return usual[: 2 * self.mesh.transit_count]

    def _unevenness(self, phase: int) -> Bits:
        ends, begins = self.ends_of(self.pattern)
        value = self.capacity[ends]
        scale = np.ones(len(ends), dtype=np.int64)
        if phase < 2:
            sides = 2 * self.mesh.target[ends] + phase
            scale = self.arriving[sides]
            value = value * np.minimum(self.usual[sides], scale)
        first = np.repeat(begins[:-1], np.diff(begins))
        is_other = value * scale[first] != value[first] * scale
        if not len(ends):
            return np.zeros(0, dtype=np.bool_)
        uneven: Bits = np.logical_or.reduceat(is_other, begins[:-1])
        return uneven


class Behind(NamedTuple):
    """
    What remains behind some (side, word)s.

    Args:
        flat: For each the capacity behind it, the same for all destinations that it has next hops to; 0 where it has none, or in *rough*.
        domain: The destinations it has next hops to.
        rough: Which ones differ from destination to destination; none of sides that nobody sends to.
        sums: For each of these, x 64 destinations, the capacity.
    """

    flat: Indices
    domain: Words
    rough: Indices
    sums: Indices


def everything(hops: NextHops) -> tuple[Indices, Indices]:
    """Return all (side, word)s."""
    side_count, width = 2 * hops.mesh.node_count, hops.attached.shape[1]
    return np.repeat(np.arange(side_count), width), np.tile(np.arange(width), side_count)


def remains(
    hops: NextHops, ground: Ground, sides: Indices, words: Indices, reached: Words, *, is_everything: bool = False
) -> Behind:
    """
    Return what remains behind *sides*, each for one of *words*; if they are what `everything` gives, say so: it is cheaper.

    Cost: O(link-ends of the sides), and 64 times this where destinations differ.
    """
    if is_everything:
        by_side = np.empty((2 * hops.mesh.node_count, hops.attached.shape[1]), dtype=np.uint64)
        by_side[_DOWN::2], by_side[_UP::2] = hops.descends & ~hops.attached, reached & ~hops.descends
        domain: NDArray[np.uint64] = by_side.ravel()
    else:
        nodes, is_up = sides >> 1, (sides & 1).astype(np.bool_)
        descends = hops.descends[nodes, words]
        domain = np.where(is_up, reached[nodes, words] & ~descends, descends & ~hops.attached[nodes, words])
    # Nobody asks what remains behind a side that nobody sends to; there, one cut cable can make a great many differ.
    domain = np.where(ground.is_behind[sides], domain, np.uint64(0))
    destination_count = np.bitwise_count(domain).astype(np.int64)
    if is_everything:
        count, usable_count, usable_capacity = _counts_of_all(hops, ground)
    else:
        count, usable_count, usable_capacity = _counts(hops, ground, sides, words)
    is_none, each = destination_count == 0, ground.each[sides]
    # As many members as destinations is one each; as many as there are for each of them is all for each.
    is_one = (count == destination_count) & (each >= 0)
    is_all = count == usable_count * destination_count
    flat = np.where(is_none, 0, np.where(is_all, usable_capacity, np.where(is_one, each, 0)))
    rough = np.flatnonzero(~is_none & ~is_all & ~is_one)
    return Behind(flat, domain, rough, _sums(hops, ground, sides[rough], words[rough]))


def _counts_of_all(hops: NextHops, ground: Ground) -> tuple[Indices, Indices, Indices]:
    """Return, for all sides x words, how many members it has, how many usable link-ends, and their capacity."""
    side_count, width = 2 * hops.mesh.node_count, hops.attached.shape[1]
    total = np.zeros((side_count, width), dtype=np.int64)
    # In the order of the link-ends: most often a node has its up ones all in a row.
    starts = run_starts(ground.side)
    if len(starts):
        by_run = np.add.reduceat(np.bitwise_count(hops.members), starts, axis=0, dtype=np.uint32)
        order = np.argsort(ground.side[starts], kind="stable")
        sides = ground.side[starts][order]
        firsts = run_starts(sides)
        total[sides[firsts]] = np.add.reduceat(by_run[order], firsts, axis=0, dtype=np.int64)
    usable = np.bincount(ground.side[hops.usable], minlength=side_count)
    capacity = np.bincount(ground.side, np.where(hops.usable, ground.capacity, 0), minlength=side_count)
    return total.ravel(), np.repeat(usable, width), np.repeat(capacity.astype(np.int64), width)


def _counts(hops: NextHops, ground: Ground, sides: Indices, words: Indices) -> tuple[Indices, Indices, Indices]:
    """Return, for each of *sides*, how many members it has in its word, how many usable link-ends, and their capacity."""
    ends, begins = ground.ends_of(sides)
    if not len(ends):
        nothing = np.zeros(len(sides), dtype=np.int64)
        return nothing, nothing, nothing
    sizes = np.diff(begins)
    count = np.bitwise_count(hops.members[ends, np.repeat(words, sizes)])
    usable = hops.usable[ends]
    capacity = np.where(usable, ground.capacity[ends], 0)
    return _added(count, begins), _added(usable, begins), _added(capacity, begins)


def _added(values: NDArray[np.generic], begins: Indices) -> Indices:
    """Return the sum of each run of *values*; runs may be empty."""
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total[begins[1:]] - total[begins[:-1]]


def _sums(hops: NextHops, ground: Ground, sides: Indices, words: Indices) -> Indices:
    """Return, for each of *sides* x the 64 destinations of its word, the capacity of its members."""
    ends, begins = ground.ends_of(sides)
    if not len(ends):
        return np.zeros((len(sides), WORD_BITS), dtype=np.int64)
    # Only sides with members are rough, so no run is empty.
    marks = unpacked(hops.members[ends, np.repeat(words, np.diff(begins))][:, None], WORD_BITS)
    each = ground.each[sides]
    sums = np.add.reduceat(marks, begins[:-1], axis=0, dtype=np.int64) * each[:, None]
    mixed = np.flatnonzero(each < 0)
    if len(mixed):
        places, starts = runs(begins[mixed], begins[mixed + 1])
        weighted = marks[places] * ground.capacity[ends[places]][:, None]
        sums[mixed] = np.add.reduceat(weighted, starts[:-1], axis=0)
    return sums


class Weighing:
    """
    The weights of the next hops, kept up with them.

    A group is looked at only if its members' values may differ by more than the tolerance, or if its weights are unequal now: the rest is
    equal, and stays so. What remains behind a node is *odd* where it is not within the tolerance of what remains as built. A destination is
    *doubtful* in a bundle if it is odd at some neighbour, if neighbours do different things for it, or if they differ even as built.

    Args:
        hops: Brought up to date by whoever calls `update`.
        ground: Of the same mesh.
        previous: The weights before.

    Cost: O(link-ends x destinations / 64) words, and O(members) of doubtful groups, alike ones once.
    """

    def __init__(self, hops: NextHops, ground: Ground, previous: Weights = EQUAL) -> None:
        self._hops = hops
        self._ground = ground
        width, node_count = hops.attached.shape[1], hops.mesh.node_count
        self._reached = hops.reached
        self._descends = hops.descends.copy()
        self._flat: Indices = np.zeros((2 * node_count, width), dtype=np.int64)
        """Sides x words: what remains behind it, -1 where that differs from destination to destination."""
        self._odd: Words = np.zeros((2 * node_count, width), dtype=np.uint64)
        self._look(*everything(hops), is_everything=True)
        self._doubtful: Words = np.zeros((len(ground.pattern), width), dtype=np.uint64)
        """Bundles x destinations."""
        self._doubt(np.arange(len(ground.pattern)), slice(0, width))
        self._unequal: Words = np.zeros((node_count, width), dtype=np.uint64)
        """Nodes x destinations: which groups have unequal weights."""
        self._weights: Weights | None = None
        self._set(previous)
        self._weigh_all()

    @cached_property
    def _weight(self) -> Weight:
        """Link-ends x destinations: the weight; 0 in groups with equal weights too."""
        # So large only as addresses go: memory that was never written to takes no place.
        return np.zeros((len(self._hops.mesh), self._hops.attached.shape[1] * WORD_BITS), dtype=np.uint8)

    @property
    def weights(self) -> Weights:
        """The weights now. Cost: O(link-ends of unequal groups), after a change."""
        if self._weights is None:
            mesh = self._hops.mesh
            node, column = positions(self._unequal)
            if not len(node):
                self._weights = EQUAL
                return EQUAL
            ends, start = mesh.outgoing(node)
            self._weights = Weights(node, column, start, self._weight[ends, np.repeat(column, np.diff(start))])
        return self._weights

    def update(self, touched: Touched, previous: Weights | None = None) -> None:
        """
        Take in what a change of the next hops did.

        Args:
            touched: What the change did.
            previous: The weights before, if they are not those of this state.

        Cost: O(link-ends of touched nodes), and what `Weighing` takes for doubtful groups at and before them.
        """
        rows, words = np.nonzero(touched.columns)
        nodes = touched.nodes[rows]
        changed = self._renew(nodes, words)
        if changed.any():
            self._doubt(self._ground.bundles_to(np.unique(nodes[changed])), _window(words[changed]))
        if previous is not None and previous is not self._weights and previous != self.weights:
            self._set(previous)
            self._weigh_all()
        elif len(nodes):
            self._weigh_near(touched)

    # --- what remains -------------------------------------------------------------------------------------------------
    def _renew(self, nodes: Indices, words: Indices) -> Bits:
        """Look at (node, word)s again. Return for which of them anything has changed that matters to those before them."""
        hops = self._hops
        reached = np.zeros(len(nodes), dtype=np.uint64)
        for level in hops.levels.values():
            reached |= level[nodes, words]
        descends = hops.descends[nodes, words]
        changed = (reached ^ self._reached[nodes, words]) | (descends ^ self._descends[nodes, words])
        self._reached[nodes, words] = reached
        self._descends[nodes, words] = descends
        for way in (_DOWN, _UP):
            sides = 2 * nodes + way
            matters = np.flatnonzero(self._ground.is_behind[sides])
            sides, some = sides[matters], words[matters]
            before = self._odd[sides, some]
            self._look(sides, some)
            changed[matters] |= before ^ self._odd[sides, some]
        is_changed: Bits = changed != 0
        return is_changed

    def _look(self, sides: Indices, words: Indices, *, is_everything: bool = False) -> None:
        """Find what remains behind (side, word)s, and where it is odd."""
        behind = remains(self._hops, self._ground, sides, words, self._reached, is_everything=is_everything)
        odd = np.where(self._is_odd(behind.flat, sides), behind.domain, np.uint64(0))
        flat, rough = behind.flat, behind.rough
        if len(rough):
            odd[rough] = packed(self._is_odd(behind.sums, sides[rough][:, None]))[:, 0] & behind.domain[rough]
            flat[rough] = -1
        if is_everything:
            self._flat[:], self._odd[:] = flat.reshape(self._flat.shape), odd.reshape(self._odd.shape)
        else:
            self._flat[sides, words] = flat
            self._odd[sides, words] = odd

    def _is_odd(self, capacity: Indices, sides: Indices) -> Bits:
        """Return whether *capacity* behind *sides* is too far from the usual one for equal weights."""
        arriving = self._ground.arriving[sides]
        now, usual = np.minimum(capacity, arriving), np.minimum(self._ground.usual[sides], arriving)
        least = (2 * WEIGHT_MAX - TOLERANCE_HALVES) * usual
        odd: Bits = (now > usual) | (2 * WEIGHT_MAX * now < least)
        return odd

    def _doubt(self, bundles: Indices, part: slice) -> None:
        """Find the doubtful destinations of *bundles*, in *part* of the words."""
        hops, ground = self._hops, self._ground
        if not len(bundles):
            return
        ends, begins = ground.ends_of(ground.pattern[bundles])
        target, starts = hops.mesh.target[ends], begins[:-1]
        is_up = (ground.pattern[bundles] & 1).astype(np.bool_)[:, None]
        attached, descends = hops.attached[target, part], hops.descends[target, part]

        def of_any(marks: Words) -> Words:
            found: Words = np.bitwise_or.reduceat(marks, starts, axis=0)
            return found

        # Who is sent to on the way down sends down, or delivers.
        down, delivering = of_any(descends & ~attached), of_any(attached)
        up = np.where(is_up, of_any(self._reached[target, part] & ~descends), np.uint64(0))
        odd = of_any(self._odd[2 * target, part]) | np.where(
            is_up, of_any(self._odd[2 * target + 1, part]), np.uint64(0)
        )
        doubtful = odd | (up & down) | (up & delivering) | (down & delivering)
        for marks, is_uneven in zip((down, up, delivering), ground.is_uneven[:, bundles], strict=True):
            doubtful |= np.where(is_uneven[:, None], marks, np.uint64(0))
        self._doubtful[bundles, part] = doubtful

    # --- which groups -------------------------------------------------------------------------------------------------
    def _set(self, weights: Weights) -> None:
        """Replace all weights by *weights*."""
        self._forget(*positions(self._unequal))
        self._write(2 * weights.node, weights.column, weights.weight, is_of_nodes=True)
        self._weights = weights

    def _weigh_all(self) -> None:
        """Weigh all groups that may have other weights."""
        self._weigh(np.arange(self._hops.mesh.node_count), np.full_like(self._hops.attached, ~np.uint64(0)))

    def _weigh_near(self, touched: Touched) -> None:
        """Weigh the groups that may have other weights because of what was *touched*: there, and where a neighbour sends to it."""
        mesh = self._hops.mesh
        doubting = np.append(has_any(self._doubtful), False)[
            self._ground.bundle
        ]  # a side without link-ends has no doubts
        is_concerned = has_any(self._unequal) | doubting[_DOWN::2] | doubting[_UP::2]
        if not is_concerned.any():
            return
        incoming, _ = mesh.incoming(touched.nodes)
        is_near = np.zeros(mesh.node_count, dtype=np.bool_)
        is_near[touched.nodes] = True
        is_near[mesh.source[incoming]] = True
        nodes = np.flatnonzero(is_concerned & is_near)
        dirty = np.zeros_like(self._hops.attached)
        dirty[touched.nodes] = touched.columns
        near = dirty[nodes]
        ends, begins = mesh.outgoing(nodes)
        if len(ends):
            has_ends = np.flatnonzero(np.diff(begins))
            near[has_ends] |= np.bitwise_or.reduceat(dirty[mesh.target[ends]], begins[has_ends], axis=0)
        self._weigh(nodes, near)

    def _weigh(self, nodes: Indices, columns: Words) -> None:
        """Weigh what is in doubt, or unequal, of the groups of *nodes* (rising) towards *columns*."""
        hops, ground = self._hops, self._ground
        unequal = self._unequal[nodes] & columns
        gone = unequal.copy()
        found: list[_Cells] = []
        for way in (_DOWN, _UP):
            bundle = ground.bundle[2 * nodes + way]
            rows = np.flatnonzero(bundle >= 0)
            wanted = (columns[rows] & self._doubtful[bundle[rows]]) | unequal[rows]
            at, words = np.nonzero(wanted)
            rows, wanted = rows[at], wanted[at, words]
            node = nodes[rows]
            if way == _UP:
                wanted &= self._reached[node, words] & ~hops.descends[node, words]
            else:
                wanted &= hops.descends[node, words] & ~hops.attached[node, words]
            some = np.flatnonzero(wanted)
            gone[rows[some], words[some]] &= ~wanted[some]
            found.append(_Cells(2 * node[some] + way, words[some], wanted[some]))
        rows, column = positions(gone)
        self._forget(nodes[rows], column)
        cells = _Cells(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        if len(cells.side):
            self._weigh_cells(cells)

    def _weigh_cells(self, cells: "_Cells") -> None:
        first, kind = self._kinds(cells)
        order = np.argsort(kind, kind="stable")
        kinds = cells.part(first)
        sizes = np.bitwise_count(kinds.columns).astype(np.int64) * self._ground.degree[kinds.side]
        bounds = np.append(0, np.cumsum(sizes))
        start = 0
        while start < len(first):
            stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + BLOCK_PAIRS, side="right")) - 1)
            block = order[np.searchsorted(kind[order], start) : np.searchsorted(kind[order], stop)]
            graded = self._grade(kinds.part(slice(start, stop)))
            self._settle(cells.part(block), kind[block] - start, graded)
            start = stop

    def _kinds(self, cells: "_Cells") -> tuple[Indices, Indices]:
        """Return the first of each kind of cells that have the same neighbours, members and destinations, and each cell's kind."""
        ground = self._ground
        ends, begins = ground.ends_of(cells.side)
        members = self._hops.members[ends, np.repeat(cells.word, np.diff(begins))]
        bundle = ground.bundle[cells.side]
        local = np.arange(len(ends)) - np.repeat(begins[:-1], np.diff(begins))
        # Mixed up so that different cells hardly ever look alike; whether they are is seen below.
        mixed: Words = np.add.reduceat(_scrambled(members ^ _scrambled(local.astype(np.uint64))), begins[:-1])
        for part in (bundle.astype(np.uint64), cells.word.astype(np.uint64), cells.columns):
            mixed = _scrambled(np.bitwise_xor(mixed, part))
        _, first, kind = np.unique(mixed, return_index=True, return_inverse=True)
        like = first[kind]
        if (
            all((part[like] == part).all() for part in (bundle, cells.word, cells.columns))
            and (members[runs(begins[like], begins[like + 1])[0]] == members).all()
        ):
            return first, kind
        everyone = np.arange(len(cells.side))
        return everyone, everyone

    # --- what is each worth ---------------------------------------------------------------------------------------------
    def _grade(self, cells: "_Cells") -> "_Graded":
        """Return what the members of the groups in *cells* are worth, and the ideal weights."""
        hops, ground = self._hops, self._ground
        which, bit = np.nonzero(unpacked(cells.columns[:, None], WORD_BITS))
        side, word = cells.side[which], cells.word[which]
        ends, start = ground.ends_of(side)
        begins, sizes = start[:-1], np.diff(start)
        words, shift = np.repeat(word, sizes), np.repeat(bit, sizes).astype(np.uint64)

        def marks(of: Words, rows: Indices) -> Bits:
            return ((of[rows, words] >> shift) & np.uint64(1)).astype(np.bool_)

        target = hops.mesh.target[ends]
        is_member, delivers = marks(hops.members, ends), marks(hops.attached, target)
        behind_side = 2 * target + (np.repeat((side & 1).astype(np.bool_), sizes) & ~marks(hops.descends, target))
        behind = self._flat[behind_side, words]
        rough = np.flatnonzero((behind < 0) & is_member & ~delivers)
        if len(rough):
            width = hops.attached.shape[1]
            places, number = np.unique(behind_side[rough] * width + words[rough], return_inverse=True)
            sums = _sums(hops, ground, places // width, places % width)
            behind[rough] = sums[number, shift[rough].astype(np.int64)]
        scale = np.where(delivers, 1, ground.arriving[behind_side])
        value: Indices = np.where(
            is_member, ground.capacity[ends] * np.where(delivers, 1, np.minimum(behind, scale)), 0
        )
        # Fractions of numbers so small are either equal or farther apart than a division rounds.
        ratio = value / scale
        is_best = ratio == np.repeat(np.maximum.reduceat(ratio, begins), sizes)
        best = np.minimum.reduceat(np.where(is_best, np.arange(len(ends)), len(ends)), begins)
        share = value * np.repeat(scale[best], sizes)
        whole = np.repeat(value[best], sizes) * scale
        is_good = 2 * WEIGHT_MAX * np.abs(share - whole) <= TOLERANCE_HALVES * whole
        ideal = np.maximum((2 * WEIGHT_MAX * share + whole) // (2 * whole), is_member)
        ideal //= np.repeat(np.gcd.reduceat(ideal, begins), sizes)
        return _Graded(
            group_start=np.searchsorted(which, np.arange(len(cells.side) + 1)),
            column=word * WORD_BITS + bit,
            start=start,
            is_member=is_member,
            share=share,
            whole=whole,
            is_equal_good=np.logical_and.reduceat(is_good | ~is_member, begins),
            ideal=ideal.astype(np.uint8),
            is_unequal=np.maximum.reduceat(ideal, begins) > 1,
        )

    def _settle(self, cells: "_Cells", kind: Indices, graded: "_Graded") -> None:
        """Give the groups of *cells*, each of one *kind* of those that were *graded*, their weights."""
        group, begins = runs(graded.group_start[kind], graded.group_start[kind + 1])
        side = np.repeat(cells.side, np.diff(begins))
        column = graded.column[group]
        was_unequal = (
            self._unequal[side >> 1, column // WORD_BITS] >> (column % WORD_BITS).astype(np.uint64)
        ) & np.uint64(1)
        is_new = ~graded.is_equal_good[group] & graded.is_unequal[group]
        known = np.flatnonzero(was_unequal)
        if len(known):
            keeps, is_other = self._keeps(side[known], column[known], group[known], graded)
            is_new[known] = np.where(is_other, is_new[known], graded.is_unequal[group[known]]) & ~keeps
            known = known[~keeps]
            self._forget(side[known] >> 1, column[known])
        new = np.flatnonzero(is_new)
        if len(new):
            places, _ = runs(graded.start[group[new]], graded.start[group[new] + 1])
            self._write(side[new], column[new], graded.ideal[places])

    def _keeps(self, side: Indices, column: Indices, group: Indices, graded: "_Graded") -> tuple[Bits, Bits]:
        """Return which groups keep their unequal weights, and which have other members than they had."""
        ends, start = self._ground.ends_of(side)
        begins, sizes = start[:-1], np.diff(start)
        places, _ = runs(graded.start[group], graded.start[group + 1])
        old = self._weight[ends, np.repeat(column, sizes)].astype(np.int64)
        is_member, whole = graded.is_member[places], graded.whole[places]
        is_same: Bits = np.logical_and.reduceat((old > 0) == is_member, begins)
        top = np.repeat(np.maximum.reduceat(old, begins), sizes)
        is_good = 2 * WEIGHT_MAX * np.abs(graded.share[places] * top - old * whole) <= TOLERANCE_HALVES * whole * top
        keeps: Bits = is_same & np.logical_and.reduceat(is_good | ~is_member, begins)
        return keeps, ~is_same

    # --- the weights ------------------------------------------------------------------------------------------------------
    def _forget(self, node: Indices, column: Indices) -> None:
        """Make the groups of *node* towards *column* equal."""
        if len(node):
            ends, begins = self._hops.mesh.outgoing(node)
            self._weight[ends, np.repeat(column, np.diff(begins))] = 0
            bit = np.left_shift(np.uint64(1), (column % WORD_BITS).astype(np.uint64))
            np.bitwise_and.at(self._unequal, (node, column // WORD_BITS), ~bit)
            self._weights = None

    def _write(self, side: Indices, column: Indices, weight: Weight, *, is_of_nodes: bool = False) -> None:
        """Give the groups of *side* towards *column* weights: one for each of its link-ends, or of those of its node."""
        if len(side):
            ends, begins = self._hops.mesh.outgoing(side >> 1) if is_of_nodes else self._ground.ends_of(side)
            self._weight[ends, np.repeat(column, np.diff(begins))] = weight
            bit = np.left_shift(np.uint64(1), (column % WORD_BITS).astype(np.uint64))
            np.bitwise_or.at(self._unequal, (side >> 1, column // WORD_BITS), bit)
            self._weights = None


class _Cells(NamedTuple):
    """Groups: of each side those towards some destinations of one word."""

    side: Indices
    word: Indices
    columns: Words

    def part(self, where: Indices | slice) -> "_Cells":
        return _Cells(self.side[where], self.word[where], self.columns[where])


@dataclass(frozen=True, slots=True)
class _Graded:
    """
    What the members of groups are worth; whatever is of members is there for all link-ends of a side.

    Args:
        group_start: Where each cell's groups start.
        column: Per group its destination.
        start: Where each group's link-ends start.
        is_member: Per group and link-end.
        share, whole: Per group and link-end: its value in parts of the best member's, as a fraction.
        is_equal_good: Per group, whether equal weights are within the tolerance.
        ideal: Per group and link-end the ideal weight; 0 where it is no member.
        is_unequal: Per group, whether these are unequal.
    """

    group_start: Indices
    column: Indices
    start: Indices
    is_member: Bits
    share: Indices
    whole: Indices
    is_equal_good: Bits
    ideal: Weight
    is_unequal: Bits


def _scrambled(words: Words) -> Words:
    """Return a number without a pattern for each number. Source: the finalizer of Steele et al., SplitMix, OOPSLA 2014."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _window(words: Indices) -> slice:
    """Return the words from the first to the last of *words*."""
    return slice(int(words.min()), int(words.max()) + 1)
