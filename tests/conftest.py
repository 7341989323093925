"""What every test may ask for."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real inputs beside the checkout; CI must have it, a user's checkout need not."""
    if not (SHARED / "topologies").is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"no real inputs at {SHARED}: CI must lay the folder beside the checkout")
        pytest.skip(f"no real inputs at {SHARED}")
    return SHARED
