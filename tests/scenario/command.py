"""The `erfs` command as its users call it, in a process of its own."""

import subprocess
import sys
from pathlib import Path


def erfs(*arguments: object, folder: Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the command in *folder*."""
    program = "from erfs.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=folder,
        env={"PYTHONHASHSEED": hash_seed, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def run_small(folder: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    """Run *scenario*, which is called small and passes, with seed 1; its results are in ``out/small-seed1``."""
    (folder / "small.yaml").write_text(scenario)
    done = erfs("run", "small.yaml", folder=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done
