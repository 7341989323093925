"""Small files that must survive a power cut.

Rule 1: after a crash at any instant the file holds the old content or the new, never a mixture.
"""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put *content* at *path*, whose folder is made if need be; durable when this returns. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The rename itself must survive too.
        os.fsync(folder)
    finally:
        os.close(folder)
