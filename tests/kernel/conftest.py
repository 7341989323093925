"""Where the kernel's tests may run."""

from pathlib import Path

import pytest

from .namespaces import why_not

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them where there can be no namespaces."""
    mine = [item for item in items if HERE in item.path.parents]
    reason = why_not() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.kernel)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
