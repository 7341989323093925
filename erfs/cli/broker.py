"""`erfs broker`: run the embedded MQTT broker, in the foreground, until SIGTERM or SIGINT.

Rule 1: once it says where it listens, clients can connect.
"""

import asyncio
import os
from pathlib import Path

import click

from erfs.errors import ErfsError


@click.command("broker")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 1883]")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file: host, port, password_file, tls, log_level.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="Write HOST:PORT and a line end there once it listens; /dev/fd/N works too.",
)
@click.option("--hash-password", metavar="USER", help="Ask for a password, print the line for password_file, and end.")
def command(
    host: str | None, port: int | None, config: Path | None, ready_file: Path | None, hash_password: str | None
) -> None:
    """Run the embedded MQTT broker.

    It keeps nothing on disk: after a restart clients publish again what was retained. By default it listens on loopback
    and lets everybody in; --config names a password file and TLS. Use Mosquitto or EMQX for a production fabric.

    Example: erfs broker --port 1883
    """
    try:
        from erfs.aio import broker as embedded
    except ModuleNotFoundError as error:
        raise ErfsError(
            f"the embedded broker needs {error.name}: install erfs[broker], or use another broker"
        ) from None
    from erfs.aio.config import load
    from erfs.aio.logs import set_up_logs

    if hash_password is not None:
        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(f"{hash_password}:{embedded.hash_password(password)}")
        return
    settings = load(embedded.BrokerSettings, config) if config is not None else embedded.BrokerSettings()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update=given)
    set_up_logs(settings.log_level)

    def on_listening(real_port: int) -> None:
        place = f"{settings.host}:{real_port}"
        if ready_file is not None:
            ready_file.write_text(f"{place}\n")
        click.echo(f"listening on {place} (process {os.getpid()})")

    with asyncio.Runner() as runner:
        runner.run(embedded.serve(settings, on_listening))
