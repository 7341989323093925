"""What a process's logs look like, seen from outside."""

import json
import os
import pty
import subprocess
import sys

PROGRAM = """
import logging, structlog
from erfs.aio.logs import set_up_logs
set_up_logs({level!r})
structlog.get_logger("erfs.some").info("link_down_detected", link="a|b", detection_ms=4)
structlog.get_logger("erfs.some").debug("detail")
logging.getLogger("some.library").warning("watch %s", "out")
logging.getLogger("amqtt.broker").info("a packet")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger("erfs.some").exception("it_broke")
"""


def run(level: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(level=level)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_without_a_terminal_each_event_is_one_json_line_whoever_logs_it() -> None:
    first, second, third = run("info")
    assert first.pop("wall_time").endswith("Z")
    assert first == {
        "event": "link_down_detected",
        "link": "a|b",
        "detection_ms": 4,
        "level": "info",
        "logger": "erfs.some",
    }
    assert (second["event"], second["level"], second["logger"]) == ("watch out", "warning", "some.library")
    assert "ZeroDivisionError" in third["exception"]


def test_the_level_is_a_setting_and_opens_talkative_libraries_only_at_debug() -> None:
    assert [line["event"] for line in run("warning")] == ["watch out", "it_broke"]
    assert [line["event"] for line in run("debug")] == [
        "link_down_detected",
        "detail",
        "watch out",
        "a packet",
        "it_broke",
    ]


def test_on_a_terminal_events_are_for_people() -> None:
    here, there = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(level="info")], stderr=there, stdout=there) as process:
        os.close(there)
        shown = b""
        try:
            while chunk := os.read(here, 65536):
                shown += chunk
        except OSError:
            pass  # the terminal's other end is closed
        process.wait(60)
    os.close(here)
    assert b"link_down_detected" in shown
    assert b'"event"' not in shown
