"""Does `erfs paths` behave at the command line?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from erfs.exporters import write_fabric
from erfs.fabric import Fabric
from erfs.generators import generate
from tests.paths.fabrics import Draft

Erfs = Callable[..., tuple[int, str, str]]


def written(fabric: Fabric, folder: Path) -> Path:
    path = folder / "fabric.json"
    path.write_text(write_fabric(fabric, "node-link"), encoding="utf-8")
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return written(generate("fat-tree", {"k": 4}), tmp_path)


def hosts(path: Path) -> tuple[str, str]:
    ids = sorted(node["id"] for node in json.loads(path.read_text())["nodes"] if node["kind"] != "switch")
    return ids[0], ids[-1]


def test_a_fat_tree_of_four_has_four_ways_between_pods(run_erfs: Erfs, tree: Path) -> None:
    code, out, err = run_erfs("paths", tree, *hosts(tree), "--json", "--disjoint", "--count", 3)
    data = json.loads(out)

    assert (code, err) == (0, "")
    assert (data["equal_cost_paths"], data["links_each"], len(data["paths"])) == (4, 6, 3)
    assert data["policy"] == "valley-free"
    assert [path["nodes"][3] for path in data["paths"]] == ["core0-0", "core0-1", "core1-0"]
    counts = {name: (found["count"], found["is_largest"]) for name, found in data["disjoint"].items()}
    assert counts["link"] == counts["node"] == (2, True)


def test_the_terminal_tells_the_count_and_the_first(run_erfs: Erfs, tree: Path) -> None:
    one, other = hosts(tree)
    code, out, _ = run_erfs("paths", tree, one, other, "--count", 1)
    lines = out.splitlines()

    assert code == 0
    assert lines[0] == f"{one} to {other}: 4 equal-cost paths of 6 links, valley-free"
    assert lines[1].startswith(f"  1. {one} > ")
    assert lines[2:] == ["  ... and 3 more, --count N prints them"]


def test_what_would_be_a_valley_is_said(run_erfs: Erfs, tmp_path: Path) -> None:
    """Two leaves under two spines that a third leaf joins: over it there is a second way, and it is a valley."""
    draft = Draft()
    leaves = [draft.switch(f"leaf{index}", 1) for index in range(4)]
    spines = [draft.switch(f"spine{index}", 2) for index in range(2)]
    for leaf, spine in ((0, 0), (1, 1), (2, 0), (2, 1), (0, 1), (3, 0)):
        draft.cable(leaves[leaf], spines[spine])
    for index, leaf in enumerate(leaves):
        draft.host(f"h{index}", leaf)
        draft.host(f"g{index}", leaf)
    path = written(draft.fabric(), tmp_path)

    code, out, _ = run_erfs("paths", path, "leaf0", "leaf1", "--disjoint")
    assert code == 0
    assert "link-disjoint: 1" in out
    code, out, _ = run_erfs("paths", path, "leaf1", "leaf3")
    assert (code, out) == (
        1,
        "leaf1 to leaf3: no path, but for valleys, which policy forbids (--valleys shows them)\n",
    )
    assert run_erfs("paths", path, "leaf1", "leaf3", "--valleys")[0] == 0
    _, out, _ = run_erfs("paths", path, "spine0", "spine1", "--json", "--disjoint")
    data = json.loads(out)
    assert (data["equal_cost_paths"], data["valleys_would_join"]) == (0, True)
    assert data["disjoint"]["link"]["count_with_valleys"] == 2


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (("core0-0", "core0-9"), 'there is no node "core0-9" in fabric "fat-tree k=4" (did you mean "core0-'),
        (("core0-0", "zzz"), "`erfs fabric show` tells what is there"),
        (("core0-0", "core0-0"), '"core0-0" and "core0-0" are the same place: expected two'),
    ],
)
def test_wrong_names_are_64_and_a_suggestion(
    run_erfs: Erfs, tree: Path, places: tuple[str, str], expected: str
) -> None:
    code, out, err = run_erfs("paths", tree, *places)
    assert (code, out) == (64, "")
    assert expected in err


def test_a_name_means_its_node_unless_it_repeats(run_erfs: Erfs, tmp_path: Path) -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 1, "hosts_per_leaf": 1})
    named = {"leaf0": "Left", "leaf1": "Twin", "leaf2": "Twin"}
    fabric = fabric.with_nodes(replace(node, name=named.get(node.id, "")) for node in fabric.nodes.values())
    path = written(fabric, tmp_path)

    assert run_erfs("paths", path, "Left", "leaf2")[1].startswith("Left to Twin: 1 equal-cost path of 2 links")
    code, _, err = run_erfs("paths", path, "Left", "Twin")
    assert code == 64
    assert '2 nodes are named "Twin": give the id of one, such as leaf1, leaf2' in err


def test_the_hash_seed_changes_nothing(tree: Path) -> None:
    arguments = [sys.executable, "-m", "erfs", "paths", str(tree), *hosts(tree), "--disjoint", "--json"]
    outputs = {
        subprocess.run(
            arguments,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
