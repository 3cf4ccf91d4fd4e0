"""A worker: is pushed rows of the outbox over a WebSocket, runs their activities, and records what came of them.

The worker opens a session under a fresh name and keeps it alive with one heartbeat for all its rows. When the connection is
lost, it attaches again, to the next node, under the same name, and says which rows it has; they stay its own meanwhile. When
the worker itself dies, the session ends with its lease and the rows are handed out again, so an activity runs at least once,
and may run again: what counts is the first outcome that is recorded.

usage: worker.py URL...        runs activities of the type `charge` until it is told to end (SIGTERM or Ctrl-C)
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from holdfast import Holdfast, HoldfastError, Json, value_of

log = logging.getLogger("worker")

LEASE_MS = 10_000
# The longest that a request to end, or the end of an activity, waits until it is noticed.
LOOK_S = 0.1
# The row is another worker's by now, or has its outcome: what was done here counts for nothing.
LOST = {"claim_lost", "already_terminal", "row_not_found", "row_not_claimed"}


class GiveUp(Exception):
    """Raised by an activity that would fail again: the workflow hears of it at once."""


@dataclass
class Execution:
    """What an activity is told. A long one looks at `lost` now and then, and stops when it is set."""

    key: str
    attempt: int
    input: Any
    token: str
    store: Holdfast
    lost: threading.Event = field(default_factory=threading.Event)

    def heartbeat(self, details: Any = None) -> None:
        """For activities with a heartbeat timeout, and to show how far they are. The row is kept without it."""
        try:
            self.store.heartbeat(self.key, self.token, LEASE_MS, details)
        except HoldfastError as error:
            if error.code in LOST:
                self.lost.set()


Activity = Callable[[Execution], Any]


class Worker:
    """Runs up to `slots` activities at a time."""

    def __init__(
        self,
        store: Holdfast,
        name: str,
        activities: dict[str, Activity],
        slots: int = 4,
        namespace: str = "default",
        task_queue: str = "default",
    ):
        self.store, self.activities = store, activities
        self.registration = {
            "identity": name,
            "namespaces": [namespace],
            "task_queue": task_queue,
            "activity_types": list(activities),
            "max_concurrency": slots,
            "lease_ms": LEASE_MS,
        }
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix=name)
        self._session = str(uuid.uuid4())
        # By token: two claims of one row may be here at once, of which the older one has lost it.
        self._held: dict[str, Execution] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Takes no more rows; `run` returns once the ones in hand are done."""
        self._stopping.set()

    def run(self) -> None:
        """Works until it is stopped, attached to one node after another."""
        failures = 0
        with self._pool:
            while True:
                for url in self.store.urls:
                    attached_at = time.monotonic()
                    try:
                        if self._work_at(url):
                            return
                    except (OSError, WebSocketException) as lost:
                        log.warning("%s is lost: %s", url, lost)
                    if self._stopping.is_set() and not self._held:
                        return  # The session ends with its lease, and has nothing to lose.
                    failures = failures + 1 if time.monotonic() - attached_at < LEASE_MS / 1000 else 0
                    # The next node at once; after a round of them, ever more slowly.
                    if failures >= len(self.store.urls):
                        time.sleep(random.uniform(0.5, 1.0) * min(0.1 * 2 ** min(failures, 10), 5.0))

    def _work_at(self, url: str) -> bool:
        """Works for as long as the connection lasts. True if that was all."""
        address = url.replace("http", "ws", 1) + "/v1/sessions/stream"
        with connect(address, open_timeout=5, close_timeout=1, proxy=None, compression=None, max_size=None) as socket:
            return Conversation(self, socket).hold()

    def _deliver(self, delivery: Json) -> None:
        key, token = delivery["key"], delivery["token"]
        if token in self._held:
            return
        for older in list(self._held.values()):
            if older.key == key:
                older.lost.set()
        execution = Execution(key, delivery["attempt"], value_of(delivery["input"]), token, self.store)
        self._held[token] = execution
        self._pool.submit(self._execute, self.activities[delivery["activity_type"]], execution)

    def _withdraw(self, token: str) -> None:
        if execution := self._held.pop(token, None):
            execution.lost.set()

    def _session_over(self) -> None:
        for token in list(self._held):
            self._withdraw(token)
        self._session = str(uuid.uuid4())

    def _execute(self, activity: Activity, execution: Execution) -> None:
        key, token = execution.key, execution.token
        try:
            if execution.lost.is_set():
                return
            try:
                result = activity(execution)
            except Exception as error:
                kind, for_good = type(error).__name__, isinstance(error, GiveUp)
                self._tell(lambda: self.store.fail(key, token, f"{kind}: {error}", kind, not for_good), execution)
            else:
                self._tell(lambda: self.store.complete(key, token, result), execution)
        finally:
            self._held.pop(token, None)

    def _tell(self, outcome: Callable[[], Any], execution: Execution) -> None:
        """Tells an outcome until it is answered, or counts for nothing."""
        while not execution.lost.is_set():
            try:
                outcome()
                return
            except HoldfastError as error:
                lost = error.code in LOST
                log.log(logging.INFO if lost else logging.ERROR, "%s is not recorded: %s", execution.key, error)
                if not error.is_retryable:
                    return


class Conversation:
    """What is said over one connection."""

    def __init__(self, worker: Worker, socket: ClientConnection):
        self.worker, self.socket = worker, socket
        self.received, self.interval, self.heard = 0, 1.0, time.monotonic()
        self.drained = False
        holding = [{"key": each.key, "token": each.token} for each in list(worker._held.values())]
        self._say("attach", session=worker._session, worker=worker.registration, holding=holding)

    def hold(self) -> bool:
        heartbeat_at, draining, closing = 0.0, False, False
        while True:
            now = time.monotonic()
            if now - self.heard > 2 * self.interval + 1:
                raise TimeoutError("the node does not answer")
            if self.received and now >= heartbeat_at:
                self._say("heartbeat", received=self.received)
                heartbeat_at = now + self.interval
            if self.received and self.worker._stopping.is_set() and not draining:
                self._say("drain")
                draining = True
            if self.drained and not self.worker._held and not closing:
                self._say("close")
                closing = True
            try:
                message: Json = json.loads(self.socket.recv(timeout=LOOK_S))
            except TimeoutError:
                continue
            self.heard = time.monotonic()
            if message["type"] == "ended":
                return self._ended(message["reason"], message["problem"]) or closing
            self._hear(message)

    def _hear(self, message: Json) -> None:
        kind, self.received = message["type"], message["number"]
        if kind == "attached":
            self.interval = message["heartbeat_ms"] / 1000
            if not message["resumed"]:
                for token in list(self.worker._held):
                    self.worker._withdraw(token)
        elif kind == "deliveries":
            for delivery in message["deliveries"]:
                self.worker._deliver(delivery)
        elif kind == "withdrawn":
            for row in message["rows"]:
                self.worker._withdraw(row["token"])
        elif kind == "draining":
            self.drained = True

    def _ended(self, reason: str, problem: Json | None) -> bool:
        """True if there is nothing left to do."""
        if reason in {"closed", "session_over"}:
            self.worker._session_over()
            return self.worker._stopping.is_set()
        # `node_state`: this node's start is not committed yet, or the others take it for dead; the next one may do.
        if reason == "refused" and problem and problem["status"] < 500 and problem["code"] != "node_state":
            raise HoldfastError(problem["code"], problem["detail"], problem.get("details"), problem["status"])
        if reason == "moved":
            raise HoldfastError("session_moved", "another connection has taken the session over")
        return False

    def _say(self, kind: str, **members: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **members}))


def charge(execution: Execution) -> Json:
    if execution.input["amount"] == 0:
        raise GiveUp("there is nothing to charge")
    return {"number": f"receipt of {execution.key}"}


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    logging.basicConfig(level=logging.INFO)
    first = Worker(Holdfast(sys.argv[1:]), "w-1", {"charge": charge}, slots=8)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: first.stop())
    first.run()
