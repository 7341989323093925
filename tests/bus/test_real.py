"""What only real brokers can show: round trips, frozen processes, TLS, credentials, access control, amqtt's defect."""

import asyncio
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker as PlainAmqtt

from erfs.aio import mqtt
from erfs.aio.broker import BrokerSettings, EmbeddedBroker, hash_password
from erfs.aio.mqtt import BusSettings, MqttBus
from erfs.errors import ConfigError
from erfs.ports import Priority

Bench = Any  # tests/bus/conftest.py
ROOT = Path(__file__).resolve().parents[2]
ERFS = [sys.executable, "-c", "from erfs.cli.main import main; main()"]


async def usual_round_ms(bench: Bench, rounds: int = 60) -> float:
    """
    Publisher -> broker -> subscriber -> broker -> publisher, one message at a time.

    The first quintile: a delayed acknowledgement holds up every round, a busy machine only some.
    """
    here = await bench.client("here", "back")
    there = await bench.client("there", "forth")
    there.bus.on_message = lambda incoming: there.say("back", incoming.payload, priority=Priority.URGENT)
    arrived = asyncio.Event()
    here.bus.on_message = lambda incoming: arrived.set()
    took_ns = []
    for _ in range(rounds):
        arrived.clear()
        started_ns = time.monotonic_ns()
        here.say("forth", b"x" * 200, priority=Priority.URGENT)
        async with asyncio.timeout(20):
            await arrived.wait()
        took_ns.append(time.monotonic_ns() - started_ns)
    return statistics.quantiles(took_ns, n=5)[0] / 1e6


async def test_a_round_over_the_bus_does_not_wait_for_delayed_acknowledgements(real_bench: Bench) -> None:
    assert await usual_round_ms(real_bench) < 20


@pytest.mark.mosquitto
async def test_without_tcp_nodelay_at_both_ends_a_round_does_wait(
    mosquitto_factory: Any, bench_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-proof of the test above: it measures the thing it says it measures."""
    monkeypatch.setattr(mqtt, "_SOCKET_OPTIONS", ())
    broker = mosquitto_factory("allow_anonymous true")
    assert await usual_round_ms(bench_of(broker), rounds=30) > 30


async def test_a_frozen_broker_is_noticed_by_round_trip_and_found_again(real_bench: Bench) -> None:
    """Its connections stay open, so only the missing echo tells; the keep-alive would take 45 s."""
    settings = real_bench.settings(echo_deadline="500 ms", connect_deadline="500 ms")
    client = real_bench.join("client", settings)
    client.want("fact/#")
    await real_bench.until(lambda: client.is_connected)

    real_bench.broker.signal(signal.SIGSTOP)
    frozen_ns = time.monotonic_ns()
    try:
        await real_bench.until(lambda: not client.is_connected)
        assert time.monotonic_ns() - frozen_ns < 3_000_000_000
        client.say("fact/a", b"said while frozen", retain=True)
    finally:
        real_bench.broker.signal(signal.SIGCONT)
    await real_bench.until(lambda: client.is_connected)
    await real_bench.until(lambda: client.heard() == [b"said while frozen"])


async def test_a_last_will_said_although_we_live_is_contradicted(real_bench: Bench) -> None:
    """A broker that wakes up late buries the old connection after it has taken the new one in."""
    client = await real_bench.client("client", will=("presence/client", b"gone"))
    client.on_back = lambda: client.say("presence/client", b"online", retain=True)
    listener = await real_bench.client("listener", "presence/#")
    other = await real_bench.client("other")

    other.say("presence/client", b"gone", retain=True)
    await real_bench.until(lambda: listener.heard()[-2:] == [b"gone", b"online"])

    assert client.states == [True, True]
    assert client.got == []


async def test_several_brokers_deliver_everything_twice_and_one_is_enough(
    amqtt_broker: Any, mosquitto_factory: Any, bench_of: Any
) -> None:
    second = mosquitto_factory("allow_anonymous true\nset_tcp_nodelay true")
    bench = bench_of(amqtt_broker)
    settings = bench.settings(amqtt_broker.port, second.port)
    listener, speaker = bench.join("listener", settings), bench.join("speaker", settings)
    listener.want("fact/#")
    await bench.until(lambda: listener.states == [True, True] and speaker.states == [True, True])

    speaker.say("fact/a", b"one", retain=True)
    await bench.until(lambda: listener.heard() == [b"one", b"one"])

    second.kill()
    speaker.say("fact/a", b"two", retain=True)
    await bench.until(lambda: listener.heard()[2:] == [b"two"])
    assert listener.is_connected
    assert speaker.is_connected


async def test_an_urgent_message_does_not_wait_for_routine_acknowledgements(silent_broker: Any, bench_of: Any) -> None:
    """The broker acknowledges nothing: the routine lane stands still, the urgent one goes on."""
    bench = bench_of(silent_broker)
    client = bench.join("client", bench.settings(in_flight=2))
    await bench.until(lambda: client.is_connected)
    for number in range(5):
        client.say(f"report/{number}")
    await bench.until(lambda: len(silent_broker.topics) == 2)

    client.say("fact/a", priority=Priority.URGENT)
    await bench.until(lambda: len(silent_broker.topics) == 3)

    assert silent_broker.topics == [f"{bench.prefix}/{topic}" for topic in ("report/0", "report/1", "fact/a")]


async def test_an_urgent_message_is_written_before_publish_returns(real_bench: Bench) -> None:
    """No task, no turn of the loop; a routine one is written with what else there is when the present work is done."""
    client = await real_bench.client("client")
    connection = client.bus._connections[0]

    client.say("report/a")
    assert connection._paho.want_write()
    client.say("fact/a", priority=Priority.URGENT)
    assert not connection._paho.want_write()

    await real_bench.until(connection.idle.is_set)


async def test_an_urgent_answer_given_while_a_message_is_read_waits_for_the_reading_to_end(real_bench: Bench) -> None:
    """The MQTT client would wait for itself for ever: an echo before it in the queue tells when it is written."""
    client = await real_bench.client("client", "fact/#")
    connection = client.bus._connections[0]

    def answer(incoming: Any) -> None:
        client._on_message(incoming)
        if len(client.got) == 1:
            connection._paho.publish(connection._echo_topic, b"0", qos=0)
            client.say("fact/b", b"answer", priority=Priority.URGENT)

    client.bus.on_message = answer
    client.say("fact/a", b"question")
    await real_bench.until(lambda: client.heard() == [b"question", b"answer"])


async def test_a_broker_that_acknowledges_nothing_is_given_up(silent_broker: Any, bench_of: Any) -> None:
    """It echoes, so only the missing acknowledgement tells."""
    bench = bench_of(silent_broker)
    client = bench.join("client", bench.settings(connect_deadline="300 ms"))
    await bench.until(lambda: client.is_connected)

    client.say("fact/a", b"news", retain=True, priority=Priority.URGENT)
    await bench.until(lambda: not client.is_connected)
    await bench.until(lambda: len(silent_broker.topics) == 2)

    assert silent_broker.topics == [f"{bench.prefix}/fact/a"] * 2


async def test_what_a_listener_raises_ends_the_bus_where_it_is_run(real_bench: Bench) -> None:
    client = await real_bench.client("client", "fact/#")

    def refuse(incoming: object) -> None:
        raise RuntimeError("not now")

    client.bus.on_message = refuse
    client.say("fact/a")
    assert client.task is not None
    await asyncio.wait([client.task], timeout=20)

    with pytest.raises(ExceptionGroup) as failure:
        client.task.result()
    assert failure.group_contains(RuntimeError, match="not now")


async def test_clients_under_traffic_end_when_told_to(amqtt_broker: Any, bench_of: Any) -> None:
    """A cancellation that meets an acknowledgement must not get lost (it did, in one of some hundred tries)."""
    bench = bench_of(amqtt_broker)
    for attempt in range(15):
        client = bench.join(f"client{attempt}", bench.settings())
        client.want("t/#")
        await bench.until(lambda client=client: client.is_connected)
        for number in range(60):
            client.say(f"t/{number}", priority=Priority(number % 2))
        await bench.until(lambda client=client, attempt=attempt: len(client.got) > attempt)
        async with asyncio.timeout(10):
            await bench.stop(client)


async def test_what_the_broker_never_acknowledged_is_sent_again_by_the_next_session(
    silent_broker: Any, bench_of: Any
) -> None:
    bench = bench_of(silent_broker)
    client = bench.join("client", bench.settings())
    await bench.until(lambda: client.is_connected)
    client.say("report/1")
    client.say("fact/a", b"old", retain=True, priority=Priority.URGENT)
    await bench.until(lambda: len(silent_broker.topics) == 2)

    silent_broker.hang_up()
    await bench.until(lambda: not client.is_connected)
    await bench.until(lambda: len(silent_broker.topics) == 4)

    assert sorted(silent_broker.topics[2:]) == [f"{bench.prefix}/fact/a", f"{bench.prefix}/report/1"]


async def test_plain_amqtt_delivers_what_nobody_asked_for_and_the_bus_drops_it(plain_amqtt: int, bench_of: Any) -> None:
    """
    amqtt 0.12.1: a newcomer gets every retained message that matches anybody's subscription.

    If this fails because nothing unwanted came, amqtt is repaired, and `erfs.aio.broker` can lose its own repair.
    """
    bench = bench_of(None)
    settings = bench.settings(plain_amqtt)
    speaker = bench.join("speaker", settings)
    speaker.say("ret/one", b"1", retain=True)
    speaker.say("ret/two", b"2", retain=True)
    all_of_it = bench.join("all", settings)
    all_of_it.want("ret/#")
    await bench.until(lambda: len(all_of_it.got) == 2)

    one = bench.join("one", settings)
    one.want("ret/two")
    await bench.until(lambda: bool(one.got) and one.bus.unmatched_count > 0)

    assert set(one.heard()) == {b"2"}


async def test_the_embedded_broker_delivers_only_what_was_asked_for(amqtt_broker: Any, bench_of: Any) -> None:
    bench = bench_of(amqtt_broker)
    speaker = await bench.client("speaker")
    speaker.say("ret/one", b"1", retain=True)
    speaker.say("ret/two", b"2", retain=True)
    everything = await bench.client("all", "ret/#")
    await bench.until(lambda: len(everything.got) == 2)

    one = await bench.client("one", "ret/two")
    await bench.until(lambda: bool(one.got))
    await bench.settle(one)

    assert one.heard() == [b"2"]
    assert one.bus.unmatched_count == 0


async def test_forty_clients_that_come_at_once_are_all_served(amqtt_broker: Any, bench_of: Any) -> None:
    """Plain amqtt leaves some without service: subscriptions change while it iterates over them."""
    bench = bench_of(amqtt_broker)
    speaker = await bench.client("speaker")
    for index in range(40):
        speaker.say(f"fact/n{index}/p", b"down", retain=True)
    await bench.settle(speaker)
    clients = [bench.join(f"agent{index}", bench.settings()) for index in range(40)]
    for index, client in enumerate(clients):
        client.want(f"fact/n{index}/+", f"fact/n{(index + 1) % 40}/+")
    await bench.until(lambda: all(len(client.got) == 2 for client in clients))

    assert {len(client.states) for client in clients} == {1}


# --- TLS and credentials -----------------------------------------------------------------------------------------------
def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, the broker's certificate for 127.0.0.1, and a second authority that signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}")
    openssl(folder, "req", *curve, "-keyout", "broker.key", "-out", "broker.csr", "-subj", "/CN=broker")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ("x509", "-req", "-in", "broker.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(folder, *sign, "-extfile", "names", "-out", "broker.crt")
    (folder / "broker.key").chmod(0o644)
    return folder


@pytest.fixture(params=("amqtt", pytest.param("mosquitto", marks=pytest.mark.mosquitto)))
def tls_broker(request: pytest.FixtureRequest, certificates: Path, amqtt_factory: Any, mosquitto_factory: Any) -> Any:
    cert, key = certificates / "broker.crt", certificates / "broker.key"
    if request.param == "amqtt":
        return amqtt_factory(f'tls = {{cert = "{cert}", key = "{key}"}}')
    return mosquitto_factory(f"allow_anonymous true\nset_tcp_nodelay true\ncertfile {cert}\nkeyfile {key}")


async def test_tls_carries_messages_and_keeps_strangers_out(tls_broker: Any, certificates: Path, bench_of: Any) -> None:
    bench = bench_of(tls_broker)
    secure = bench.settings(tls={"ca": str(certificates / "ca.crt")})
    client = bench.join("client", secure)
    client.want("fact/#")
    await bench.until(lambda: client.is_connected)
    client.say("fact/a", b"x" * 1_000_000)
    await bench.until(lambda: len(client.got) == 1)

    # A broker whose certificate another authority signed is not spoken to; nor does one that wants TLS answer without.
    misled = bench.join("misled", bench.settings(tls={"ca": str(certificates / "other.crt")}))
    plain = bench.join("plain", bench.settings(connect_deadline="500 ms"))
    await bench.until(lambda: misled.bus.failure_count >= 2 and plain.bus.failure_count >= 2)
    assert misled.states == plain.states == []


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    junk = tmp_path / "junk"
    junk.write_text("not a certificate")
    for changes, name in (
        ({"tls": {"ca": absent}}, "absent"),
        ({"tls": {"ca": junk}}, "junk"),
        ({"username": "a", "password_file": absent}, "absent"),
    ):
        with pytest.raises(ConfigError, match=name):
            MqttBus(BusSettings.model_validate(changes), "a", rng=random.Random(1))


async def test_the_embedded_broker_wants_the_password_of_its_file(
    amqtt_factory: Any, bench_of: Any, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"leaf1:{hash_password('right')}\n")
    secret = tmp_path / "secret"
    secret.write_text("right\n")
    bench = bench_of(amqtt_factory(f'password_file = "{passwords}"'))

    nameless = bench.join("nameless", bench.settings())
    wrong = bench.join("wrong", bench.settings(username="leaf1", password="wrong"))
    right = bench.join("right", bench.settings(username="leaf1", password_file=str(secret)))
    await bench.until(lambda: right.is_connected and nameless.bus.failure_count >= 2 and wrong.bus.failure_count >= 2)

    assert nameless.states == wrong.states == []


@pytest.mark.mosquitto
async def test_the_access_template_refuses_a_strangers_fact(
    mosquitto_factory: Any, bench_of: Any, tmp_path: Path
) -> None:
    """deploy/mosquitto.conf and deploy/acl.template as they ship, but for paths, the port and the prefix."""
    users = ("controller", "operator", "leaf1", "leaf2")
    passwords = tmp_path / "passwords"
    passwords.write_text("".join(f"{user}:pw\n" for user in users))
    await asyncio.to_thread(subprocess.run, ["mosquitto_passwd", "-U", str(passwords)], check=True, timeout=60)
    bench = bench_of(None)
    access = tmp_path / "acl"
    access.write_text((ROOT / "deploy/acl.template").read_text().replace("erfs/v1", bench.prefix))
    for path in (passwords, access):
        path.chmod(0o600)
    shipped = (ROOT / "deploy/mosquitto.conf").read_text()
    lines = shipped.replace("/etc/mosquitto/erfs.passwd", str(passwords)).replace(
        "/etc/mosquitto/erfs.acl", str(access)
    )
    lines = lines.replace("/var/lib/mosquitto/", f"{tmp_path}/").replace("listener 1883 127.0.0.1\n", "")
    bench.broker = mosquitto_factory(lines)

    clients = {
        user: bench.join(user, bench.settings(username=user, password="pw", client_id=f"{user}-client"))
        for user in users
    }
    nobody = bench.join("nobody", bench.settings())
    for client in clients.values():
        client.want(
            "fact/#",
            "program/#",
            "leader",
            "health/#",
            "ack/#",
            "presence/#",
            "cannot_reach/#",
            "confirm",
            "drain",
            "drain_answer/#",
            "drains",
        )
    await bench.until(lambda: all(client.is_connected for client in clients.values()))

    own = {
        "controller": ("program/leaf1", "leader", "drain_answer/00c0ffee", "drains"),
        "operator": ("confirm", "drain"),
        "leaf1": ("fact/leaf1/e1", "health/leaf1", "ack/leaf1", "presence/leaf1", "cannot_reach/leaf1"),
        "leaf2": (),
    }
    everything = sorted(topic for topics in own.values() for topic in topics)
    for user, client in clients.items():
        for topic in everything:
            client.say(topic, user.encode())
        # Its own echo goes the same way, so when it is back the broker has dealt with all before it.
        assert await client.bus.drain(20_000_000_000)
    await bench.until(lambda: len(clients["controller"].got) >= len(everything))
    for client in clients.values():
        round_count = client.bus.echo_count
        await bench.until(lambda client=client, round_count=round_count: client.bus.echo_count > round_count + 1)

    def heard(user: str) -> list[tuple[str, str]]:
        prefix = f"{bench.prefix}/"
        return sorted(
            (incoming.topic.removeprefix(prefix), incoming.payload.decode()) for incoming in clients[user].got
        )

    said = sorted((topic, user) for user, topics in own.items() for topic in topics)
    assert heard("controller") == said
    assert heard("operator") == said
    assert heard("leaf1") == [
        pair
        for pair in said
        if pair[0] in ("cannot_reach/leaf1", "fact/leaf1/e1", "leader", "presence/leaf1", "program/leaf1")
    ]
    assert heard("leaf2") == [pair for pair in said if pair[0] in ("cannot_reach/leaf1", "fact/leaf1/e1", "leader")]
    assert nobody.states == []


# --- the command -------------------------------------------------------------------------------------------------------
def test_a_taken_port_is_told_and_costs_exit_code_64() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*ERFS, "broker", "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert f"127.0.0.1:{port}: cannot listen there" in done.stderr
    assert "Traceback" not in done.stderr


def test_port_0_takes_a_free_one_and_sigterm_ends_the_broker_cleanly(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ready = tmp_path / "ready"
    with subprocess.Popen(
        [*ERFS, "broker", "--port", "0", "--ready-file", str(ready)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        request.addfinalizer(process.kill)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        host, port = ready.read_text().strip().split(":")
        assert line == f"listening on {host}:{port} (process {process.pid})\n"
        socket.create_connection((host, int(port)), timeout=20).close()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"Traceback" not in errors
    assert b"No data from" not in errors


def test_a_bad_configuration_file_is_told_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('host = "127.0.0.1"\npotr = 1\n')
    done = subprocess.run([*ERFS, "broker", "--config", str(config)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert f'{config}:2: unknown key "potr" (did you mean "port"?)' in done.stderr


async def test_every_accepted_socket_has_tcp_nodelay() -> None:
    broker = EmbeddedBroker(BrokerSettings(port=0))
    await broker.start()
    seen: list[int] = []
    inner = broker._broker.external_connected

    async def spying(reader: StreamReaderAdapter, writer: StreamWriterAdapter, name: str) -> None:
        connection = writer._writer.get_extra_info("socket")
        seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await inner(reader, writer, name)

    broker._broker.external_connected = spying
    bus = MqttBus(BusSettings.model_validate({"brokers": [{"port": broker.port}]}), "a", rng=random.Random(1))
    connected = asyncio.Event()
    bus.on_state = lambda is_connected: connected.set()
    task = asyncio.create_task(bus.run())
    async with asyncio.timeout(20):
        await connected.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await broker.stop()
    assert seen == [1]


# --- brokers of a special kind -----------------------------------------------------------------------------------------
@pytest.fixture
async def plain_amqtt() -> AsyncIterator[int]:
    """amqtt as it comes, in this process; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    broker = PlainAmqtt(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    yield port
    await broker.shutdown()


class Silent:
    """Speaks just enough MQTT to take a client in and to echo; acknowledges no publication."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readexactly(1))[0]
                length = shift = 0
                while True:
                    byte = (await reader.readexactly(1))[0]
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
                body = await reader.readexactly(length)
                kind = head >> 4
                if kind == 1:  # CONNECT -> CONNACK
                    writer.write(b"\x20\x02\x00\x00")
                elif kind == 8:  # SUBSCRIBE -> SUBACK; the tests subscribe to one filter only, their echo
                    writer.write(b"\x90\x03" + body[:2] + b"\x00")
                elif kind == 3 and not head & 0x06:  # PUBLISH with QoS 0: the echo
                    writer.write(bytes([head, length]) + body)
                elif kind == 3:
                    self.topics.append(body[2 : 2 + int.from_bytes(body[:2])].decode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def silent_broker() -> AsyncIterator[Silent]:
    broker = Silent()
    await broker.open()
    yield broker
    await broker.close()
