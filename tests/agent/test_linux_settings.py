"""What must a configuration say so that an agent drives the kernel, and what is said when it does not?"""

from pathlib import Path

import pytest

from erfs.addressing import plan_addresses
from erfs.errors import ConfigError
from erfs.generators import generate
from erfs_agent.__main__ import _load

CONFIG = """\
node = "leaf0"
ports = [{{ port = "{port}", far_end = "spine0", far_port = "1" }}]
[driver]
kind = "linux"
{more}
"""


@pytest.fixture
def addressing(tmp_path: Path) -> Path:
    path = tmp_path / "addressing.json"
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 1})
    path.write_text(plan_addresses(fabric).model_dump_json())
    return path


def load(addressing: Path, *, port: str = "1", more: str = "", is_named: bool = True) -> None:
    config = addressing.with_name("agent.toml")
    named = f'addressing = "{addressing}"\n' if is_named else ""
    config.write_text(CONFIG.format(port=port, more=named + more))
    _load(config)


def test_an_addressing_file_is_all_it_takes(addressing: Path) -> None:
    load(addressing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_named": False}, "the linux driver needs an addressing file"),
        ({"port": "e9"}, 'node "leaf0" has no port "e9"'),
        ({"more": "protocol = 4"}, "protocol"),
        ({"more": "metric = 0"}, "metric"),
        ({"more": 'namespac = "x"'}, "namespac"),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(
    addressing: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(addressing, **options)  # type: ignore[arg-type]


def test_a_file_that_is_not_there_is_told(addressing: Path) -> None:
    addressing.unlink()
    with pytest.raises(ConfigError, match=r"addressing\.json: cannot be read: No such file"):
        load(addressing)
