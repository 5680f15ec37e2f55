"""Many hosts in one run: the only place that knows `jax.distributed`.

Hosts (processes, to be exact) work in step, as each training step communicates. Everything that
one of them must tell the others outside of a step goes through the key-value store of JAX's
coordinator, which is host 0. A thread on each host reads it once a second:

- a host that fails says why there, and the others end with the same line;
- a host that is gone no longer counts up its beat, and the others end and name it;
- a host that is asked to stop says so, and all stop after the same step.

On one host all of this does nothing.
"""

import atexit
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from hypersphere_jax.config import RuntimeConfig, Stopped, UserError, differences, require
from hypersphere_jax.train.aborts import Aborts, leave_now

# Hosts may start this far apart.
JOIN_SECONDS = 300
WAITING_SECONDS = 5.0
POLL_SECONDS = 1.0
# A host whose beat stands still for so long is gone.
LOST_SECONDS = 20.0
# How long the coordinator waits for the others to read why it ends.
FAREWELL_SECONDS = 5.0
# JAX's own watch must come after the one here: it ends a process with a stack trace.
JAX_SECONDS = 600
PREFIX = "hypersphere/"

_group: "_Group | None" = None


def join(runtime: RuntimeConfig) -> None:
    """Joins the other hosts of a run, if it has others; must come before JAX's first use.

    Raises:
      UserError: when no cluster is found, or JAX runs already.
    """
    global _group
    if not runtime.has_hosts or _group is not None:
        return
    # It would catch SIGTERM, which the training loop does.
    jax.config.update("jax_enable_preemption_service", False)
    missing = (
        f"not all hosts could be reached within {JOIN_SECONDS} s: start the same command on all"
    )
    with Aborts(missing) as aborts, _waiting():
        try:
            _initialize(runtime)
        except (ValueError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            if runtime.hosts == "auto" and "should be defined" in why:
                why = "JAX finds no cluster here; name it: --coordinator, --num-hosts, --host-index"
            if "RPC server" in why:
                why += f"; is the port of {runtime.coordinator or 'host 0'} free?"
            raise UserError(f"could not join the other hosts: {why}") from error
    _group = _Group(aborts)


def _initialize(runtime: RuntimeConfig) -> None:
    explicit = runtime.coordinator is not None
    jax.distributed.initialize(
        runtime.coordinator,
        runtime.num_hosts,
        runtime.host_index,
        # Else one GPU for each process, where a cluster is found.
        local_device_ids=None if runtime.devices is None else list(range(runtime.devices)),
        cluster_detection_method="deactivate" if explicit else None,
        initialization_timeout=JOIN_SECONDS,
        heartbeat_timeout_seconds=JAX_SECONDS,
        shutdown_timeout_seconds=JAX_SECONDS,
    )


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """Says so when the others are not there; signals end the process, as nothing can be lost."""
    line = "waiting for the other hosts to start\n"
    timer = threading.Timer(WAITING_SECONDS, lambda: sys.stderr.write(line))
    timer.start()
    # Python's handlers would not run: native code waits.
    main = threading.current_thread() is threading.main_thread()
    stops = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = [signal.signal(number, signal.SIG_DFL) for number in stops]
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)


def is_first() -> bool:
    """Whether this host is the one that writes: the run's folder, and what the user reads."""
    return _group is None or _group.index == 0


def agree(values: dict[str, Any]) -> None:
    """Compares what must be the same on all hosts (JSON values).

    Raises:
      UserError: on all hosts, when one differs.
    """
    if _group is not None:
        _group.agree(values)


def stops(asked: bool, done: int) -> bool:
    """Whether to stop after so many steps: the same answer on all hosts.

    To be called before each step. It costs a lock; hosts communicate only when one is asked.

    Args:
      asked: whether this host was asked to stop.
      done: steps that this host has begun or done.
    """
    return asked if _group is None else _group.stops(asked, done)


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """What raises here is told to the other hosts, which end with the same line."""
    try:
        yield
    except Stopped:  # which all do
        raise
    except BaseException as error:
        if _group is not None:
            _group.fail(error)
        raise


class _Group:
    """This host among the others."""

    def __init__(self, aborts: Aborts):
        # There is no public way to the store; Orbax and Flax take this one.
        from jax._src import distributed

        self._client = distributed.global_state.client
        self.index, self.count = jax.process_index(), jax.process_count()
        self._aborts = aborts
        aborts.text = _lost(0, self.count) if self.index else _met_twice(self.count)
        self._changed = threading.Condition()
        self._begun, self._frozen, self._told = 0, False, False
        self._last: int | None = None  # the step after which all stop
        self._failing = False
        self._all_left = threading.Event()
        self._polled = time.monotonic()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._watch, self._judge)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._leave)

    def agree(self, values: dict[str, Any]) -> None:
        self._tell("same", json.dumps(values))
        while len(told := self._read("same/")) < self.count:
            time.sleep(0.05)
        first = json.loads(told["same/0"])
        for host in range(1, self.count):
            changed = differences(first, json.loads(told[f"same/{host}"]))
            require(
                not changed,
                f"host {host} is not as host 0 ({'; '.join(changed)}): start all hosts with the "
                "same options, data and kind of machine",
            )

    def stops(self, asked: bool, done: int) -> bool:
        if asked and not self._told:
            self._tell("stop", "1")
            self._told = True
        with self._changed:
            while self._frozen and self._last is None:
                self._changed.wait(POLL_SECONDS)
            if self._last is not None and done >= self._last:
                return True
            self._begun = done + 1
            return False

    def fail(self, error: BaseException) -> None:
        """Tells the others, and lets this process end without waiting for them."""
        if isinstance(error, jax.errors.JaxRuntimeError):
            # Most likely another host is gone: `_watch` will find out which, and end this one.
            time.sleep(LOST_SECONDS + 3 * POLL_SECONDS)
        self._failing = True
        interrupted = isinstance(error, KeyboardInterrupt)
        text = "it was stopped at once" if interrupted else str(error) or type(error).__name__
        self._farewell(f"host {self.index} ended: {text}", listeners=self.count)
        atexit.unregister(self._leave)
        atexit.register(leave_now, 0 if interrupted else 2)

    def _watch(self) -> None:
        """The thread that counts up this host's beat and reads what the others tell.

        It ends the process by itself, as the main thread may wait for a lost host for ever.
        """
        beats: dict[int, tuple[str, float]] = {}
        while not self._all_left.wait(POLL_SECONDS):
            try:
                self._tell("beat", str(time.monotonic()))
                self._look(self._read(""), beats)
            except jax.errors.JaxRuntimeError:
                self._aborts.end(_lost(0, self.count))
            self._polled = time.monotonic()

    def _look(self, told: dict[str, str], beats: dict[int, tuple[str, float]]) -> None:
        """Acts on what all hosts told; `beats` has each host's newest one and when it came."""
        now = time.monotonic()
        left = {host for host in range(self.count) if f"left/{host}" in told}
        for host in set(range(self.count)) - {self.index}:
            if f"failed/{host}" in told and not self._failing:
                self._tell("left", "1")
                self._aborts.end(told[f"failed/{host}"])
            beat = told.get(f"beat/{host}", "")
            if beats.get(host, ("none", 0.0))[0] != beat:
                beats[host] = beat, now
            elif host not in left and now - beats[host][1] > LOST_SECONDS:
                self._farewell(_lost(host, self.count), listeners=self.count - 1)
                self._aborts.end(_lost(host, self.count))
        if any(key.startswith("stop/") for key in told):
            self._find_last_step(told)
        if len(left) == self.count:
            self._all_left.set()

    def _judge(self) -> None:
        """The thread that notices when `_watch` gets no answer."""
        while not self._all_left.wait(POLL_SECONDS):
            if time.monotonic() - self._polled > LOST_SECONDS:
                self._aborts.end(_lost(0, self.count))

    def _find_last_step(self, told: dict[str, str]) -> None:
        """Holds this host before its next step until it is known how far all are.

        No host waits for another within a step then: those behind go on to the furthest step.
        """
        with self._changed:
            if not self._frozen:
                self._frozen = True
                self._tell("begun", str(self._begun))
            begun = [told.get(f"begun/{host}") for host in range(self.count)]
            if None not in begun:
                self._last = max(map(int, begun))
                self._changed.notify_all()

    def _leave(self) -> None:
        """At the end of the process: all wait for the last, still watching."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # `_watch` meets it as well
            self._tell("left", "1")
        for thread in self._threads:
            thread.join()
        self._aborts.close()

    def _farewell(self, text: str, listeners: int) -> None:
        """Says why this host ends; the coordinator waits until so many hosts know."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._tell("failed", text)
            self._tell("left", "1")
            until = time.monotonic() + FAREWELL_SECONDS
            while self.index == 0 and time.monotonic() < until:
                if len(self._read("left/")) >= listeners:
                    return
                time.sleep(0.1)

    def _tell(self, what: str, value: str) -> None:
        self._client.key_value_set(f"{PREFIX}{what}/{self.index}", value, allow_overwrite=True)

    def _read(self, prefix: str) -> dict[str, str]:
        entries = self._client.key_value_dir_get(PREFIX + prefix)
        return {key.removeprefix(PREFIX): value for key, value in entries}


def _lost(host: int, count: int) -> str:
    return (
        f"host {host} of {count} is gone (it died, or its network did): the run is kept as of its "
        "last checkpoint; to go on, run the same command on all hosts again"
    )


def _met_twice(count: int) -> str:
    return (
        f"JAX's coordinator ended the run of {count} hosts: has each an index of its own, and is "
        "every process of an earlier start gone?"
    )
