"""What the fabric tests share."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from erfs.errors import ConfigError, Problem
from erfs.importers import Imported
from erfs.importers.detect import read_fabric
from erfs.importers.reading import decode

Import = Callable[..., Imported]
Problems = Callable[[bytes | str], tuple[Problem, ...]]
Erfs = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def imported() -> Import:
    """Import what a file of some bytes would hold."""

    def imported_(raw: bytes | str, *, is_lenient: bool = False) -> Imported:
        return read_fabric(decode("file", raw.encode() if isinstance(raw, str) else raw), is_lenient=is_lenient)

    return imported_


@pytest.fixture(scope="session")
def problems_of(imported: Import) -> Problems:
    """Return the problems for which some bytes are refused."""

    def problems(raw: bytes | str) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as refused:
            imported(raw)
        return refused.value.problems

    return problems


@pytest.fixture(scope="session")
def real(shared: Path) -> dict[str, bytes]:
    """The real files by a short name, unpacked."""
    topologies, samples = shared / "topologies", shared / "ib-samples"
    return {
        "small": (topologies / "ibnetdiscover_small_2sw_mixed_speed.txt").read_bytes(),
        "dgx": gzip.decompress((topologies / "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz").read_bytes()),
        "selene": lzma.decompress((topologies / "ibnetdiscover_selene_compute_666sw.txt.xz").read_bytes()),
        "netq": (topologies / "netq_topologyGraph.json").read_bytes(),
        "clab": (topologies / "containerlab_clos02.clab.yml").read_bytes(),
        "nccl": (topologies / "nccl_topo_ndv5.xml").read_bytes(),
        "clos": (samples / "clos-8x4.ibnetdiscover.txt").read_bytes(),
        "clos -p": (samples / "clos-8x4.ibnetdiscover-p.txt").read_bytes(),
    }


@pytest.fixture
def run_erfs(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Erfs:
    """Run `erfs` in this process; returns its exit code, stdout and stderr."""
    from erfs.cli.main import main

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["erfs", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run
