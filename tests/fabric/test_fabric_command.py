"""Do `erfs fabric show` and `erfs fabric make` behave at the command line?"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from erfs.generators import GENERATORS, generate
from erfs.importers import load_fabric

Erfs = Callable[..., tuple[int, str, str]]

COUNTS = {
    "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz": (40, 542, 40, 1_114, 0),
    "ibnetdiscover_small_2sw_mixed_speed.txt": (2, 12, 1, 16, 2),
    "netq_topologyGraph.json": (3, 8, 0, 79, 0),
    "containerlab_clos02.clab.yml": (10, 4, 0, 16, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_json_agrees_with_the_independent_counts(shared: Path, run_erfs: Erfs, name: str) -> None:
    code, out, err = run_erfs("fabric", "show", shared / "topologies" / name, "--json")
    data = json.loads(out)

    keys = ("switches", "endpoints", "aggregation_nodes", "links", "self_loops")
    assert (code, err, tuple(data[key] for key in keys)) == (0, "", COUNTS[name])
    assert (data["problems"], data["unparsed"]) == ([], [])


def test_the_glance_shows_what_is_odd(shared: Path, run_erfs: Erfs) -> None:
    code, out, _ = run_erfs("fabric", "show", shared / "topologies" / "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz")

    assert code == 0
    for expected in (
        "switches with fewer uplinks than usual (12)",
        "MF0;A09-P1-IBLEAF-01-02:MQM9701/U1: 14 of 18, tier 1",
        "switch pairs with fewer parallel links than usual (6)",
        "... and 23 more, --json lists them all",
        "400 Gb/s",
    ):
        assert expected in out


def test_long_lists_are_cut_with_a_count(run_erfs: Erfs, tmp_path: Path) -> None:
    path = tmp_path / "fabric"
    assert run_erfs("fabric", "make", "rail", "--hosts", 1024, "--nics-per-host", 2, "-o", path)[0] == 0

    code, out, _ = run_erfs("fabric", "show", path)
    assert code == 0
    assert len(out.split("\n")) < 60


@pytest.mark.parametrize("kind", GENERATORS)
def test_what_is_made_can_be_shown(run_erfs: Erfs, tmp_path: Path, kind: str) -> None:
    for format_ in ("node-link", "graphml", "ibnetdiscover"):
        path = tmp_path / format_
        code, out, err = run_erfs("fabric", "make", kind, "--format", format_, "-o", path)
        assert (code, out) == (0, "")
        assert err.startswith(f"wrote {path}: ")

        code, out, _ = run_erfs("fabric", "show", path, "--json")
        fabric = generate(kind, {})
        assert (code, json.loads(out)["switches"], json.loads(out)["links"]) == (
            0,
            len(fabric.switches),
            len(fabric.links),
        )


def test_options_reach_the_generator(run_erfs: Erfs, tmp_path: Path) -> None:
    code, out, _ = run_erfs("fabric", "make", "torus", "--dims", "3x3", "--medium", "lossy", "--trunk-gbps", 100)
    path = tmp_path / "fabric"
    path.write_text(out)

    assert code == 0
    assert load_fabric(path).fabric == generate("torus", {"dims": (3, 3), "medium": "lossy", "trunk_gbps": 100})


@pytest.mark.parametrize("kind", GENERATORS)
def test_help_teaches_with_an_example_that_works(
    run_erfs: Erfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    code, out, _ = run_erfs("fabric", "make", kind, "--help")
    assert code == 0
    for name in GENERATORS[kind].params.model_fields:
        assert f"--{name.replace('_', '-')}" in out

    example = out[out.index("Example: ") + len("Example: ") :].partition("\n\n")[0].split()
    monkeypatch.chdir(tmp_path)
    assert run_erfs(*example[1:])[0] == 0


def test_an_existing_file_is_overwritten_only_by_force(run_erfs: Erfs, tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    path.write_text("mine")

    code, _, err = run_erfs("fabric", "make", "fat-tree", "-o", path)
    assert (code, path.read_text()) == (64, "mine")
    assert "add --force to overwrite it" in err
    assert run_erfs("fabric", "make", "fat-tree", "-o", path, "--force")[0] == 0
    assert len(load_fabric(path).fabric.nodes) == 36


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("make", "rail", "--hosts", "0", "--spines", "x"), "'x' is not a valid integer"),
        (
            ("make", "rail", "--hosts", "0", "--spines", "0"),
            "--spines: input should be greater than or equal to 1, not 0",
        ),
        (("make", "fat-tree", "--k", "5"), "--k: input should be a multiple of 2, not 5"),
        (("make", "torus", "--dims", "1x4"), "--dims: input should be greater than or equal to 2, not 1"),
        (("make", "leaf-spine", "--leaves", "3", "--attachments", "2"), "needs an even number of leaves, not 3"),
        (("make", "nothing"), "No such command"),
        (
            ("make", "fat-tree", "-o", "/nowhere/at/all"),
            '"/nowhere/at/all" cannot be written: no such file or directory',
        ),
        (("make", "fat-tree", "--access-gbps", "1", "--format", "ibnetdiscover"), "which no InfiniBand speed is"),
        (("show",), "Missing argument"),
    ],
)
def test_wrong_usage_is_64_and_a_message(run_erfs: Erfs, arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = run_erfs("fabric", *arguments)

    assert (code, out) == (64, "")
    assert expected in err
    assert "Traceback" not in err


def test_every_wrong_option_is_named_at_once(run_erfs: Erfs) -> None:
    _, _, err = run_erfs("fabric", "make", "rail", "--hosts", "0", "--spines", "0", "--cables", "99")

    assert [option in err for option in ("--hosts:", "--spines:", "--cables:")] == [True, True, True]


def test_help_loads_nothing_heavy() -> None:
    """`erfs fabric --help` answers without networkx, numpy, pydantic or yaml."""
    script = (
        "import sys; sys.argv = ['erfs', 'fabric', '--help']\n"
        "from erfs.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'networkx', 'numpy', 'pydantic', 'yaml'} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert out.rstrip().endswith("[]"), out
