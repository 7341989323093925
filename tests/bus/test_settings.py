"""The bus part of every configuration file."""

import random
from pathlib import Path

import pytest
import structlog
from pydantic import ValidationError

from erfs.aio.mqtt import BusSettings, MqttBus


def test_the_default_is_one_broker_on_loopback() -> None:
    settings = BusSettings()
    assert [str(address) for address in settings.brokers] == ["127.0.0.1:1883"]
    assert settings.prefix == "erfs/v1"
    assert settings.secret() is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"brokers": []}, "at least 1 item"),
        ({"brokers": [{"port": 0}]}, "greater than or equal to 1"),
        ({"prefix": "erfs/#"}, "is not a prefix"),
        ({"prefix": "/erfs"}, "is not a prefix"),
        ({"prefix": "$SYS"}, "is not a prefix"),
        ({"username": "a", "password": "b", "password_file": "c"}, "exclude each other"),
        ({"password": "b"}, "needs a username"),
        ({"tls": {"cert": "a"}}, "belong together"),
        ({"keepalive": 30}, "needs its unit"),
        ({"echo_interval": "1 ns"}, "greater than or equal to"),
        ({"port": 1}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(changes: dict, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        BusSettings.model_validate(changes)


def test_a_password_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    assert BusSettings(username="a", password_file=file).secret() == "hunter2"
    plain = BusSettings.model_validate({"username": "a", "password": "hunter2"})
    assert plain.secret() == "hunter2"
    assert "hunter2" not in repr(plain)


@pytest.mark.parametrize(
    ("host", "is_warned"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("192.0.2.1", True),
        ("broker", True),
    ],
)
async def test_a_bus_that_others_can_hear_is_warned_of(host: str, is_warned: bool) -> None:
    settings = BusSettings.model_validate({"brokers": [{"host": host, "port": 1}]})
    bus = MqttBus(settings, "a", rng=random.Random(1))
    for connection in bus._connections:
        connection.run = stop_at_once
    with structlog.testing.capture_logs() as logs:
        await bus.run()
    assert [log["event"] for log in logs] == ["bus_exposed"] * is_warned


async def stop_at_once() -> None:
    """Instead of a connection."""


async def test_a_queue_that_overflows_is_told_when_it_begins_and_ever_more_rarely() -> None:
    bus = MqttBus(BusSettings(queue_length=1), "a", rng=random.Random(1))
    with structlog.testing.capture_logs() as logs:
        for number in range(10):
            bus.publish(f"t/{number}", b"", retain=False, priority=1)
    assert [log["dropped_count"] for log in logs if log["event"] == "bus_queue_full"] == [1, 2, 4, 8]
    assert bus.dropped_count == 9
