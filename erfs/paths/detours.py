"""Could anybody upstream of a node do without it, towards each destination? Only then is its word that it cannot reach one worth saying.

Rule 1: a node is avoidable if somebody who sends by it has another neighbour to send to, or is avoidable itself.
Rule 2: after any changes the state is bit for bit the one that a computation from nothing gives.
"""

import numpy as np

from erfs.paths.bits import Indices, Words, has_any
from erfs.paths.choices import Pairs, merged_pairs
from erfs.paths.next_hops import NextHops, Touched


class Detours:
    """
    Who is avoidable, for all nodes and destinations at once.

    Args:
        hops: Kept; `update` reads it again after it has changed.

    Cost: O(link-ends x destinations / 64), for each hop of the longest chain of nodes without a second neighbour less and less.
    """

    def __init__(self, hops: NextHops) -> None:
        self._hops = hops
        mesh = hops.mesh
        self._has_choice = np.zeros_like(hops.attached)
        self._avoidable = np.zeros_like(hops.attached)
        senders = np.flatnonzero(np.diff(mesh.source_start))
        self._has_choice[senders] = self._several(senders)
        self._spread(Pairs(np.flatnonzero(np.diff(mesh.target_start)), self._everywhere()))

    @property
    def words(self) -> Words:
        """Nodes x destinations: who is avoidable; never a destination's only attachment. Cost: O(nodes x destinations / 64)."""
        return self._avoidable & ~self.only_attachments

    @property
    def has_choice(self) -> Words:
        """Nodes x destinations: who sends to several neighbours; parallel link-ends count once. Not to be changed."""
        return self._has_choice

    @property
    def only_attachments(self) -> Words:
        """Nodes x destinations: who is the only attachment."""
        attached = self._hops.attached
        once, twice = np.zeros(attached.shape[1], dtype=np.uint64), np.zeros(attached.shape[1], dtype=np.uint64)
        for node in np.flatnonzero(has_any(attached)):
            twice |= once & attached[node]
            once |= attached[node]
        return attached & ~twice

    def update(self, touched: Touched) -> Indices:
        """
        Take in that `hops` has changed. Return the nodes whose row of `words` may differ, rising.

        Cost: O(link-ends at the touched nodes, and at those whose answer changes, x destinations / 64).
        """
        mesh = self._hops.mesh
        nodes, columns = touched.nodes, touched.columns
        if not len(nodes):
            return nodes
        several = self._several(nodes)
        differs = self._has_choice[nodes] ^ several
        self._has_choice[nodes] = several
        # The far ends of link-ends that changed, and of all that send on for somebody who has a choice now, or has none any more.
        by_node = np.zeros((mesh.node_count, columns.shape[1]), dtype=np.uint64)
        by_node[nodes] = columns
        far, far_columns = mesh.target[touched.ends], by_node[mesh.source[touched.ends]]
        is_other = has_any(differs)
        down = self._receivers(Pairs(nodes[is_other], differs[is_other]))
        return self._spread(
            merged_pairs(np.concatenate([far, down.nodes]), np.concatenate([far_columns, down.columns]))
        )

    def _everywhere(self) -> Words:
        mesh = self._hops.mesh
        rows = np.count_nonzero(np.diff(mesh.target_start))
        return np.full((rows, self._hops.attached.shape[1]), ~np.uint64(0))

    def _several(self, nodes: Indices) -> Words:
        """Return for which destinations *nodes* send to several neighbours."""
        mesh, members = self._hops.mesh, self._hops.members
        once = np.zeros((len(nodes), members.shape[1]), dtype=np.uint64)
        twice, same = np.zeros_like(once), np.zeros_like(once)
        starts = mesh.source_start[nodes]
        degree = mesh.source_start[nodes + 1] - starts
        before = np.full(len(nodes), -1)
        for place in range(int(degree.max(initial=0))):
            has = np.flatnonzero(degree > place)
            ends = starts[has] + place
            target = mesh.target[ends]
            fresh = target != before[has]
            # Parallel link-ends follow one another: what this neighbour has got so far is no second neighbour.
            once[has[fresh]] |= same[has[fresh]]
            same[has[fresh]] = 0
            row = members[ends]
            twice[has] |= once[has] & row
            same[has] |= row
            before[has] = target
        return twice

    def _receivers(self, pairs: Pairs) -> Pairs:
        """Return to whom *pairs* send."""
        mesh = self._hops.mesh
        ends, begins = mesh.outgoing(pairs.nodes)
        sent = self._hops.members[ends] & np.repeat(pairs.columns, np.diff(begins), axis=0)
        is_some = has_any(sent)
        return merged_pairs(mesh.target[ends[is_some]], sent[is_some])

    def _spread(self, pairs: Pairs) -> Indices:
        """Look at *pairs* again, and at whoever is downstream of one that changes: on an acyclic graph this ends with the one answer."""
        mesh, members, avoidable = self._hops.mesh, self._hops.members, self._avoidable
        seen = [pairs.nodes]
        while len(pairs.nodes):
            nodes, columns = pairs.nodes, pairs.columns
            incoming, begins = mesh.incoming(nodes)
            found = np.zeros_like(columns)
            has = np.flatnonzero(np.diff(begins))
            if len(has):
                source = mesh.source[incoming]
                used = members[incoming] & (self._has_choice[source] | avoidable[source])
                found[has] = np.bitwise_or.reduceat(used, begins[has], axis=0)
            differs = (found ^ avoidable[nodes]) & columns
            avoidable[nodes] ^= differs
            is_other = has_any(differs)
            seen.append(nodes[is_other])
            pairs = self._receivers(Pairs(nodes[is_other], differs[is_other]))
        return np.unique(np.concatenate(seen))
