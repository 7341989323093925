"""Whatever bytes come: a fabric or a ConfigError, and nothing else."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erfs.errors import ConfigError
from erfs.exporters import WRITERS, write_fabric
from erfs.generators import generate
from erfs.importers import Imported

Import = Callable[..., Imported]

SLURM = b"SwitchName=s1 Nodes=tux[0-12],x LinkSpeed=3\nSwitchName=s2 Nodes=tux[13-20]\nSwitchName=top Switches=s[1-2]\n"
SEEDS = ("small", "clos", "clos -p", "netq", "clab", "nccl", "slurm", *WRITERS)
# Bytes that mean something to one of the formats do more damage than random ones.
TELLING = st.sampled_from(
    [
        b"\x00",
        b"\xff",
        b"\n",
        b"\r",
        b'"',
        b"'",
        b"[",
        b"]",
        b"{",
        b"}",
        b"<",
        b">",
        b"&",
        b"*",
        b":",
        b"#",
        b"\\",
        b"-1",
        b"9" * 40,
    ]
)
PIECE = st.one_of(TELLING, st.binary(max_size=4))
EDIT = st.tuples(st.integers(0, 1 << 20), st.integers(0, 40), PIECE)

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Seeds(dict[str, bytes]):
    """Files to damage; too long to be printed with every failing example."""

    def __repr__(self) -> str:
        return "seeds"


@pytest.fixture(scope="module")
def seeds(real: dict[str, bytes]) -> Seeds:
    written = {
        format_: write_fabric(generate("rail", {"hosts": 3, "nics_per_host": 2, "spines": 2}), format_).encode()
        for format_ in WRITERS
    }
    return Seeds(real | written | {"slurm": SLURM})


@pytest.mark.parametrize("name", SEEDS)
@quick
@given(edits=st.lists(EDIT, min_size=1, max_size=6), cut=st.one_of(st.none(), st.integers(0, 1 << 20)))
def test_edited_files_are_read_or_refused(
    seeds: Seeds, imported: Import, name: str, edits: list[tuple[int, int, bytes]], cut: int | None
) -> None:
    raw = seeds[name]
    for place, length, piece in edits:
        at = place % (len(raw) + 1)
        raw = raw[:at] + piece + raw[at + length :]
    if cut is not None:
        raw = raw[: cut % (len(raw) + 1)]

    check(imported, raw)


@pytest.mark.parametrize("name", SEEDS)
@quick
@given(data=st.data())
def test_shuffled_lines_are_read_or_refused(seeds: Seeds, imported: Import, name: str, data: st.DataObject) -> None:
    lines = seeds[name].split(b"\n")[:80]
    order: list[Any] = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=80))

    check(imported, b"\n".join(lines[index] for index in order))


@quick
@given(raw=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(imported: Import, raw: bytes) -> None:
    check(imported, raw)


WORDS = [
    "nodes",
    "links",
    "edges",
    "id",
    "source",
    "target",
    "key",
    "kind",
    "labels",
    "srlgs",
    "a_node",
    "a_port",
    "b_port",
    "compounded_nodes",
    "compounded_links",
    "interfaces",
    "node",
    "interface",
    "topology",
    "endpoints",
    "type",
    "name",
]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(
    data=st.fixed_dictionaries({"nodes": JSON, "links": JSON})
    | st.lists(JSON)
    | st.fixed_dictionaries({"topology": JSON})
)
def test_json_of_the_right_shape_and_wrong_content_is_read_or_refused(imported: Import, data: object) -> None:
    check(imported, json.dumps(data).encode())
    check(imported, ("topology:\n  " + json.dumps(data)).encode())


def refusal(imported: Import, raw: bytes, *, is_lenient: bool) -> tuple[Imported | None, ConfigError | None]:
    try:
        return imported(raw, is_lenient=is_lenient), None
    except ConfigError as error:
        return None, error


def check(imported: Import, raw: bytes) -> None:
    """Read *raw* strictly and leniently: whole lines of printable text with lines that exist, and no fabric with problems."""
    found, refused = refusal(imported, raw, is_lenient=False)
    lenient, _ = refusal(imported, raw, is_lenient=True)

    assert (found is None) != (refused is None)
    if found is not None:
        assert (found.problems, lenient) == ((), found)
    if refused is not None:
        line_count = len(raw.decode("utf-8", "replace").splitlines())
        for problem in refused.problems:
            assert 0 <= problem.line <= line_count + 1
            assert problem.describe("file").isprintable(), problem
    if lenient is not None:
        assert lenient.fabric.nodes
        assert refused is None or lenient.problems
