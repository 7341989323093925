"""Who does work that falls into pieces: this process, processes of our own, or a Dask cluster's.

Rule 1: answers come in the order of the pieces, whoever gives them.
Rule 2: whatever ends the work early, an error or Ctrl-C, leaves no process behind.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import click

from erfs.errors import ErfsError

CONNECT_S: Final = 10
EXTRA: Final = "dask"
# A worker needs most of a second to start; less work than this is done here.
WORTH_A_WORKER_S: Final = 2.0

Common = TypeVar("Common")
Piece = TypeVar("Piece")
Answer = TypeVar("Answer")
Workers = Callable[[Callable[[Common, Piece], Answer], Common, Sequence[Piece]], Iterator[Answer]]
"""Called with what to do, what all pieces share, and the pieces."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def here(task: Callable[[Common, Piece], Answer], common: Common, todo: Sequence[Piece]) -> Iterator[Answer]:
    """Yield the answer to each piece, given by this process."""
    return (task(common, piece) for piece in todo)


_held: list[Any] = []  # in a worker: the task, and what its pieces share


def _begin(*work: Any) -> None:
    _held[:] = work


def _answer(piece: Any) -> Any:
    task, common = _held
    return task(common, piece)


def in_processes(
    task: Callable[[Common, Piece], Answer], common: Common, todo: Sequence[Piece], jobs: int
) -> Iterator[Answer]:
    """Yield the answer to each piece, given by up to *jobs* processes. *task* is a function of a module; all else can be pickled."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(
        min(jobs, max(len(todo), 1)), multiprocessing.get_context("spawn"), initializer=_begin, initargs=(task, common)
    )
    is_done = False
    try:
        with _without_interrupts():
            answers = [pool.submit(_answer, piece) for piece in todo]
        for found in answers:
            yield found.result()
        is_done = True
    except BrokenProcessPool:
        raise ErfsError("a worker process died, perhaps for want of memory: try fewer --jobs") from None
    finally:
        if not is_done:
            for child in multiprocessing.active_children():
                child.terminate()
        pool.shutdown(wait=is_done, cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """
    Put Ctrl-C off while processes are started inside, and let these never hear it: whoever started them ends them.

    Blocking the signal is for the processes, which inherit that. It does not spare us: any other thread may take the signal, and Python
    then raises in the main one, half-way through a start, and the process started last would be nobody's.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    can_block = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_block else set()
    try:
        yield
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def on_dask(address: str, option: str) -> Iterator[Workers[Any, Any, Any]]:
    """Yield the workers of the scheduler at *address*, which the user gave as *option*."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{option} needs {error.name}: install erfs[{EXTRA}]") from None
    scheme, separator, place = address.partition("://")
    if not separator or scheme not in ("tcp", "tls") or ":" not in place:
        raise click.BadParameter(f'"{address}" is not tcp://HOST:PORT', param_hint=option)
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"no Dask scheduler answers at {address}: {error}") from None

    def answers(task: Callable[[Any, Any], Any], common: Any, todo: Sequence[Any]) -> Iterator[Any]:
        if not client.scheduler_info()["workers"]:
            raise click.UsageError(f"the Dask scheduler at {address} has no workers")
        try:
            (shared,) = client.scatter([common], broadcast=True)
            found = [client.submit(task, shared, piece, pure=False) for piece in todo]
            for future in found:
                yield future.result()
        except Exception as error:  # noqa: BLE001 -- a worker's failure arrives as any exception at all
            message = (
                f"the Dask workers at {address} failed ({error!r}): they need erfs[{EXTRA}], the same version as here"
            )
            raise ErfsError(message) from None

    with client:
        yield answers


@contextmanager
def workers_for(jobs: int | None, scheduler: str | None) -> Iterator[Workers[Any, Any, Any]]:
    """Yield the workers that a user asked for with ``--jobs`` or ``--scheduler``; with neither, processes where that pays."""
    if scheduler is not None and jobs is not None:
        raise click.UsageError("--jobs is for processes on this machine: a scheduler brings its own workers")
    if scheduler is not None:
        with on_dask(scheduler, "--scheduler") as workers:
            yield workers
    elif jobs is None:
        yield _wherever_it_pays
    elif jobs > 1:
        yield partial(in_processes, jobs=jobs)
    else:
        yield here


def _wherever_it_pays(
    task: Callable[[Common, Piece], Answer], common: Common, todo: Sequence[Piece]
) -> Iterator[Answer]:
    """Yield the answer to the first piece, given here; the rest, too, unless it is enough for processes to pay."""
    started = time.monotonic()
    yield from here(task, common, todo[:1])
    left_s = (time.monotonic() - started) * (len(todo) - 1)
    jobs = min(usable_cores(), len(todo) - 1)
    if jobs > 1 and left_s > WORTH_A_WORKER_S:
        yield from in_processes(task, common, todo[1:], jobs)
    else:
        yield from here(task, common, todo[1:])


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield what to call after each piece: a bar on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
