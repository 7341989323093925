"""Does `erfs sweep` behave at the command line, whoever does the work?"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from erfs.exporters import write_fabric
from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.paths.what_if_pairs import clopper_pearson

Erfs = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaf-spine fabric with 24 classes: work for two pieces."""
    path = tmp_path_factory.mktemp("sweep") / "pod.json"
    fabric = generate("leaf-spine", {"leaves": 24, "spines": 3, "hosts_per_leaf": 2})
    path.write_text(write_fabric(fabric, "node-link"), encoding="utf-8")
    return path


def printed(*arguments: str | Path, hash_seed: str = "0") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "erfs", "sweep", *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_bytes_are_the_same_for_any_workers_and_hash_seed(pod: Path) -> None:
    arguments = (pod, "--failures", "2", "--sample", "300", "--seed", "7", "--json")
    alone = printed(*arguments, "--jobs", "1")
    data = json.loads(alone)

    assert printed(*arguments, "--jobs", "2", hash_seed="1") == alone
    assert printed(*arguments, hash_seed="2") == alone
    assert (data["pairs"]["examined"], data["pairs"]["is_exhaustive"], data["pairs"]["seed"]) == (300, False, 7)


def test_processes_answer_in_the_order_of_the_pieces(pod: Path) -> None:
    from erfs.cli.sweep import _answer
    from erfs.cli.workers import in_processes
    from erfs.importers import load_fabric
    from erfs.paths.what_if import Sweep, pieces

    sweep = Sweep(load_fabric(pod).fabric, ["node"])
    parts = in_processes(_answer, (sweep.ground, sweep.failures), pieces(sweep.ground), 2)
    assert [part.is_connected.shape for part in parts] == [(24, 16), (24, 8)]


def test_a_dask_cluster_gives_the_same_bytes(run_erfs: Erfs, pod: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        code, out, _ = run_erfs("sweep", pod, "--json", "--scheduler", cluster.scheduler_address)
    assert (code, out) == (0, printed(pod, "--json"))


def test_every_link_switch_and_group_has_its_outcome(run_erfs: Erfs, pod: Path) -> None:
    code, out, err = run_erfs("sweep", pod, "--json")
    data = json.loads(out)
    fabric = generate("leaf-spine", {"leaves": 24, "spines": 3, "hosts_per_leaf": 2})
    ids = [outcome["id"] for outcome in data["outcomes"]]
    groups = {srlg for link in fabric.links.values() for srlg in link.srlgs}

    assert (code, err) == (0, "")
    assert sorted(ids) == sorted([*fabric.links, *(node.id for node in fabric.switches), *groups])
    assert data["fabric"] == {"demands": 48 * 47, "endpoints": 48, "links": 120, "name": fabric.name, "switches": 27}
    # A tray holds all uplinks of a leaf, whose endpoints stay attached; power takes the access links of a rack.
    assert sorted(data["single_points_of_failure"]) == sorted(srlg for srlg in groups if srlg.startswith("tray:"))
    assert data["added_by_policy"] == []
    own = [id_ for id_ in ids if id_ in fabric.links and "host" in id_]
    own += [node.id for node in fabric.switches if node.tier == 1]
    own += [srlg for srlg in groups if srlg.startswith("power:")]
    assert sorted(data["single_homed_endpoints"]) == sorted(own)


def test_kinds_are_what_fails(run_erfs: Erfs, pod: Path) -> None:
    _, out, _ = run_erfs("sweep", pod, "--json", "--kinds", "node")
    assert {outcome["kind"] for outcome in json.loads(out)["outcomes"]} == {"node"}


def test_single_points_of_failure_come_first_and_sole_attachments_do_not_drown_them(
    run_erfs: Erfs, tmp_path: Path
) -> None:
    path = tmp_path / "thin.json"
    fabric = generate("leaf-spine", {"leaves": 12, "spines": 1, "hosts_per_leaf": 4})
    path.write_text(write_fabric(fabric, "node-link"), encoding="utf-8")
    code, out, _ = run_erfs("sweep", path)
    titles = [line for line in out.splitlines() if line.startswith(("single", "  access"))]

    assert code == 0
    assert titles[0].startswith("single points of failure: demands between attached endpoints are cut (25)")
    assert titles[1:] == [
        "single-homed endpoints: failures that cut nothing but their own endpoints (72)",
        "  access 0-1: 48, each up to 94 of 2,256 demands",
    ]
    assert out.index("spine0") < out.index("single-homed")


def test_two_failures_are_all_looked_at_where_they_are_few(run_erfs: Erfs, pod: Path) -> None:
    code, out, _ = run_erfs("sweep", pod, "--failures", 2, "--kinds", "node")
    assert code == 0
    assert "two failures at once: all 351 pairs; of 27 trunks, switches and groups" in out
    assert "exact: all pairs" in out


def test_a_sample_has_its_interval(run_erfs: Erfs, pod: Path) -> None:
    code, out, _ = run_erfs("sweep", pod, "--failures", 2, "--kinds", "link,node", "--sample", 100, "--json")
    shares = json.loads(out)["pairs"]["shares"]
    hits = shares["cut or detach any demand"]["pairs"]

    assert code == 0
    assert 0 < hits < 100
    assert shares["cut or detach any demand"]["interval_95"] == list(clopper_pearson(hits, 100))
    assert shares["cut demands of attached endpoints"] == {"pairs": 0, "share": 0.0, "interval_95": [0.0, 0.036217]}


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "i" and "title" in found:
            self.titles.append(str(found["title"]))
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_a_cell_for_each_failure_and_needs_nothing_else(run_erfs: Erfs, pod: Path, tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    code, out, _ = run_erfs("sweep", pod, "--failures", 2, "--sample", 50, "--html", page)
    read = _Cells()
    read.feed(page.read_text(encoding="utf-8"))

    assert (code, out.splitlines()[-1]) == (0, f"heat map: {page}")
    assert len(read.titles) == 120 + 27 + len({s for link in _links(pod) for s in link.srlgs})
    assert any(title.startswith("spine0: repaired by removal, capacity 66.67 %") for title in read.titles)
    assert read.fetched == []
    assert not {"http:", "https:", "url(", "@import"} & set(page.read_text(encoding="utf-8").split())
    assert "What the words mean" in read.text


def _links(path: Path) -> list[Link]:
    from erfs.importers import load_fabric

    return list(load_fabric(path).fabric.links.values())


def test_names_are_text_on_the_page() -> None:
    from erfs.cli.sweep_page import page_of
    from erfs.cli.sweep_report import Report
    from erfs.paths.what_if import KINDS, Sweep, answer

    evil = '<script>alert("x")</script>'
    nodes = [Node(NodeId("s0"), NodeKind.SWITCH, name=evil), *(Node(NodeId(f"h{i}"), NodeKind.HOST) for i in range(2))]
    links = [
        Link.between(LinkEnd(NodeId(f"h{i}"), "1"), LinkEnd(NodeId("s0"), str(i)), capacity_bps=1) for i in range(2)
    ]
    sweep = Sweep(Fabric(nodes, links, name=evil), KINDS)
    impact = answer(sweep.ground, sweep.failures, (0, 1))
    report = Report(evil, 1, 2, 2, 2, KINDS, False, False, tuple(sweep.outcomes(impact)), None)
    assert evil not in page_of(report)
    assert "&lt;script&gt;alert" in page_of(report)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--kinds", "link,swich"), '"swich" is no kind of failure: expected some of link,node,srlg'),
        (("--failures", "3"), "3 is not in the range 1<=x<=2"),
        (("--sample", "5"), "--sample and --seed draw pairs: they need --failures 2"),
        (("--jobs", "0"), "0 is not in the range x>=1"),
        (("--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"), "a scheduler brings its own workers"),
        (("--html", "/nowhere/at/all.html"), '"/nowhere/at/all.html" cannot be written: no such file or directory'),
    ],
)
def test_wrong_usage_is_64_and_a_message(run_erfs: Erfs, pod: Path, arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = run_erfs("sweep", pod, *arguments)
    assert (code, out) == (64, "")
    assert expected in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there_is_64(run_erfs: Erfs) -> None:
    assert run_erfs("sweep", "no-such.json")[0] == 64


def test_a_scheduler_needs_its_extra(run_erfs: Erfs, pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, out, err = run_erfs("sweep", pod, "--scheduler", "tcp://127.0.0.1:8786")
    assert (code, out) == (64, "")
    assert "install erfs[dask]" in err


def test_a_scheduler_that_is_not_one_is_refused(run_erfs: Erfs, pod: Path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    code, _, err = run_erfs("sweep", pod, "--scheduler", "localhost")
    assert code == 64
    assert '"localhost" is not tcp://HOST:PORT' in err


def test_workers_that_are_not_there_or_cannot_do_it_are_told_of(run_erfs: Erfs, pod: Path, tmp_path: Path) -> None:
    """First none; then one in an environment of its own, where there is no erfs."""
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    (tmp_path / "erfs.py").write_text("raise ImportError('no erfs here')")
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        code, out, err = run_erfs("sweep", pod, "--json", "--scheduler", address)
        assert (code, out) == (64, "")
        assert f"the Dask scheduler at {address} has no workers" in err

        worker = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with distributed.Client(address) as client:
                client.wait_for_workers(1, timeout=60)
            code, out, err = run_erfs("sweep", pod, "--json", "--scheduler", address)
        finally:
            worker.kill()
            worker.wait(timeout=20)
    assert (code, out) == (70, "")
    assert "they need erfs[dask], the same version as here" in err


def test_ctrl_c_ends_it_and_its_workers_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "torus.json"
    path.write_text(write_fabric(generate("torus", {"dims": (12, 12, 8)}), "node-link"), encoding="utf-8")
    running = subprocess.Popen(
        [sys.executable, "-m", "erfs", "sweep", str(path), "--jobs", "2", "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers: list[psutil.Process] = []
    try:
        while running.poll() is None and len(workers) < 2:
            children = psutil.Process(running.pid).children(recursive=True)
            workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert (running.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(workers, timeout=20)[1] == []
