"""The brokers that live tests run over."""

from collections.abc import Iterator

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from tests.bus.conftest import Amqtt, Broker, Mosquitto

BROKERS = ("amqtt", pytest.param("mosquitto", marks=pytest.mark.mosquitto))


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that is there for the tests of a file."""
    kind = Amqtt if request.param == "amqtt" else Mosquitto
    made = kind(tmp_path_factory.mktemp(request.param))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="session")
def fat_tree() -> Fabric:
    """20 switches, 16 hosts; two ways up from every edge and aggregation switch."""
    return generate("fat-tree", {"k": 4})
