"""A worker: claims rows of the outbox under a lease, runs their activities, and records what came of them.

A row that a worker holds is nobody else's as long as its heartbeats come. When the worker dies, the lease ends and
the row is handed out again, so an activity runs at least once, and may run again: what counts is the first outcome that is
recorded, and the proof of being entitled to it is the token of the claim.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from holdfast import Holdfast, HoldfastError, Json, value_of

log = logging.getLogger("worker")

LEASE_MS, WAIT_MS = 10_000, 2_000
# The row is another worker's by now, or has its outcome: what was done here counts for nothing.
LOST = {"claim_lost", "already_terminal", "row_not_found"}


class GiveUp(Exception):
    """Raised by an activity that would fail again: the workflow hears of it at once."""


@dataclass
class Execution:
    """What an activity is told. A long one looks at `lost` now and then, and stops when it is set."""

    key: str
    attempt: int
    input: Any
    token: str
    lost: threading.Event = field(default_factory=threading.Event)


Activity = Callable[[Execution], Any]


class Worker:
    """Runs up to `slots` activities at a time."""

    def __init__(self, store: Holdfast, name: str, activities: dict[str, Activity], slots: int = 4, **scope: Any):
        self.store, self.name, self.activities, self.slots = store, name, activities, slots
        self.scope = {**scope, "activity_types": list(activities)}
        self._held: dict[str, Execution] = {}
        self._stopping, self._stopped = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Takes no more rows; `run` returns once the ones in hand are done."""
        self._stopping.set()

    def run(self) -> None:
        heartbeats = threading.Thread(target=self._keep_leases, daemon=True)
        heartbeats.start()
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(self.slots, thread_name_prefix=self.name) as pool:
            while not self._stopping.is_set():
                if len(running) == self.slots:
                    _, running = wait(running, return_when=FIRST_COMPLETED)
                for delivery in self._claim(self.slots - len(running)):
                    running.add(pool.submit(self._execute, delivery))
                running = {future for future in running if not future.done()}
        self._stopped.set()
        heartbeats.join()

    def _claim(self, limit: int) -> list[Json]:
        try:
            return self.store.claim(self.name, limit, LEASE_MS, WAIT_MS, **self.scope)
        except HoldfastError as error:
            log.warning("%s cannot claim: %s", self.name, error)
            self._stopping.wait(1)
            return []

    def _execute(self, delivery: Json) -> None:
        key, token = delivery["key"], delivery["token"]
        execution = Execution(key, delivery["attempt"], value_of(delivery["input"]), token)
        # Two claims of one row may be here at once: the older one has lost it.
        self._held[token] = execution
        try:
            try:
                result = self.activities[delivery["activity_type"]](execution)
            except Exception as error:
                kind = type(error).__name__
                self.store.fail(key, token, f"{kind}: {error}", kind, retryable=not isinstance(error, GiveUp))
            else:
                self.store.complete(key, token, result)
        except HoldfastError as error:
            # If no node could be told, the lease ends and the row comes back.
            log.log(logging.INFO if error.code in LOST else logging.ERROR, "%s counts for nothing: %s", key, error)
        finally:
            del self._held[token]

    def _keep_leases(self) -> None:
        while not self._stopped.wait(LEASE_MS / 3000):
            for execution in list(self._held.values()):
                try:
                    self.store.heartbeat(execution.key, execution.token, LEASE_MS)
                except HoldfastError as error:
                    if error.code in LOST:
                        execution.lost.set()
