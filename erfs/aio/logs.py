"""How logs look: for people on a terminal, JSON otherwise; ours and those of the libraries alike.

Rule 1: called once, by a process's `__main__` or command; nothing else configures logging.
Rule 2: logs go to standard error, so that standard output stays a command's result.
"""

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import Processor

LEVELS: Final = ("debug", "info", "warning", "error")

# Libraries that report every packet; what matters of it comes back as an event of ours.
_TALKATIVE: Final = ("amqtt", "transitions", "mqtt", "asyncio")


def set_up_logs(level: str = "info", stream: TextIO | None = None) -> None:
    """
    Send every event of *level* and above to standard error, or to *stream*.

    Args:
        level: One of `LEVELS`. Libraries that report every packet stay at "warning" unless it is "debug".
        stream: For a command whose standard error belongs to its user, such as one with a progress bar.
    """
    stream = stream or sys.stderr
    assert level in LEVELS
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="wall_time"),
    ]
    if stream.isatty():
        renderers: list[Processor] = [structlog.dev.ConsoleRenderer()]
    else:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(number if level == "debug" else max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
