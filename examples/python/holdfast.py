"""A thin client of Holdfast's HTTP API: one method for each route that an engine or a worker needs.

A call goes to the node that answered last. If that one is gone, or says that it cannot serve now, the next one is
asked with the same body and, for a write, the same idempotency key: a write whose answer was lost is not made twice.
A refusal is final and is raised as a `HoldfastError`, with the code to program against.
"""

from __future__ import annotations

import base64
import json
import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import requests

Json = dict[str, Any]

# Answers after which another node, or the same one later, may do better.
RETRYABLE_STATUSES = {429, 502, 503, 504}
# How long a node may take to accept a connection, and to answer beyond the time that it was asked to wait.
CONNECT_S, ANSWER_S = 2.0, 5.0
# Nothing for this long on a stream means that it is dead: the node sends a comment every 15 s.
SILENCE_S = 20.0
PAGE = 500


class HoldfastError(Exception):
    """What a node refused, or why no node could be asked."""

    def __init__(self, code: str, detail: str, details: Json | None = None, status: int | None = None):
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.details, self.status = code, detail, details or {}, status

    @property
    def is_retryable(self) -> bool:
        return self.status is None or self.status in RETRYABLE_STATUSES


class Holdfast:
    """A cluster. May be shared by threads. `patience_s` is how long a call is repeated before it gives up."""

    def __init__(self, urls: Sequence[str], patience_s: float = 30.0):
        self.urls = [url.rstrip("/") for url in urls]
        if not self.urls:
            raise ValueError("a cluster needs the URL of at least one node")
        self.patience_s = patience_s
        self._preferred = 0
        self._sessions = threading.local()

    # Histories

    def commit(self, workflow: str, expected_seq: int, **parts: list[Any]) -> Json:
        """Events, rows, settlements, transitions and timers of one workflow: all or nothing."""
        return self._post(f"{_of(workflow)}/commit", {"expected_seq": expected_seq, **parts})

    def append(self, workflow: str, *events: Json) -> Json:
        """Appends wherever the history ends. For signals and operators, who decide nothing from what stands there."""
        while True:
            head = self.head(workflow)
            try:
                return self._post(f"{_of(workflow)}/append", {"expected_seq": head, "events": list(events)})
            except HoldfastError as refused:
                if refused.code != "sequence_conflict":
                    raise

    def head(self, workflow: str) -> int:
        """The number of the last event; 0 if there is none."""
        found = self.workflow(workflow)
        return int(found["head"]) if found else 0

    def workflow(self, workflow: str) -> Json | None:
        """Status, head and current run; none if nobody has written to it."""
        found: Json | None = self._get(_of(workflow))["workflow"]
        return found

    def history(self, workflow: str, from_seq: int = 1) -> Iterator[Json]:
        """The events from that number on."""
        while True:
            events = self._get(f"{_of(workflow)}/history", from_seq=from_seq, limit=PAGE)["events"]
            if not events:
                return
            yield from events
            from_seq = events[-1]["seq"] + 1

    def open_heads(self, min_index: int) -> Iterator[Json]:
        """Workflow, status and head of each history that has not ended, as of that log index or later."""
        return self._pages("/v1/heads", "heads", open="true", min_index=min_index)

    def watch_heads(self, namespace: str) -> Iterator[tuple[str, Json]]:
        """Each history of a namespace that `grew`, and each row that became a `dead_letter`. First of all, and wherever something may
        be missing, `resync` with a log index: look at everything as of that index. Goes on for ever, on any node."""
        while True:
            try:
                yield from self._stream("/v1/heads/watch", namespace=namespace)
            except (requests.RequestException, HoldfastError) as error:
                if isinstance(error, HoldfastError) and not error.is_retryable:
                    raise
                self._prefer_another(self._preferred)
                time.sleep(0.05)

    # The outbox

    def heartbeat(self, key: str, token: str, lease_ms: int, details: Any = None) -> None:
        self._post(f"{_row(key)}/heartbeat", {"token": token, "lease_ms": lease_ms, "details": payload(details)})

    def complete(self, key: str, token: str, result: Any) -> None:
        self._post(f"{_row(key)}/complete", {"token": token, "result": payload(result)})

    def fail(self, key: str, token: str, error: str, error_type: str, retryable: bool) -> Json:
        """Returns what became of the row: pending again, or failed."""
        body = {"token": token, "error": {"text": error}, "error_type": error_type, "retryable": retryable}
        returned: Json = self._post(f"{_row(key)}/fail", body)["returned"]
        return returned

    def dead_letters(self, namespace: str, min_index: int) -> Iterator[Json]:
        """Rows whose deliveries are used up, as of that log index or later."""
        return self._pages("/v1/outbox/dead-letters", "rows", namespace=namespace, min_index=min_index)

    def mark_failure_delivered(self, key: str) -> None:
        self._post(f"{_row(key)}/failure-delivered", {})

    def counts(self, namespace: str) -> Json:
        """How many rows are pending and claimed."""
        nothing = {"namespace": namespace, "pending": 0, "claimed": 0, "in_flight": 0}
        every = self._pages("/v1/outbox/counts", "namespaces")
        return next((counts for counts in every if counts["namespace"] == namespace), nothing)

    # Timers

    def expired_timers(self, namespace: str, wait_ms: int) -> list[Json]:
        """Timers of a namespace that are due; waits for the first one."""
        params = {"namespace": namespace, "wait_ms": wait_ms, "limit": PAGE}
        timers: list[Json] = self._get("/v1/timers/expired", **params)["timers"]
        return timers

    def timers(self, workflow: str) -> Iterator[Json]:
        return self._pages(f"{_of(workflow)}/timers", "timers")

    def retire_timer(self, workflow: str, arming: Json) -> None:
        self._post(f"{_of(workflow)}/timers/retire", arming)

    # How calls are made

    def _get(self, path: str, **params: Any) -> Json:
        return self._call("GET", path, params=params, wait_ms=params.get("wait_ms", 0))

    def _post(self, path: str, body: Json, wait_ms: int = 0) -> Json:
        return self._call("POST", path, body=body, headers={"Idempotency-Key": str(uuid.uuid4())}, wait_ms=wait_ms)

    def _pages(self, path: str, member: str, **params: Any) -> Iterator[Json]:
        while True:
            page = self._get(path, **params)
            yield from page[member]
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    def _call(
        self,
        method: str,
        path: str,
        params: Json | None = None,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        wait_ms: int = 0,
    ) -> Json:
        timeout = (CONNECT_S, ANSWER_S + wait_ms / 1000)
        deadline = time.monotonic() + self.patience_s + wait_ms / 1000
        attempt = 0
        while True:
            node = self._preferred
            try:
                answer = self._session().request(
                    method, self.urls[node] + path, params=params, json=body, headers=headers, timeout=timeout
                )
                if answer.ok:
                    found: Json = answer.json()
                    return found
                error = _refusal(answer)
            except requests.RequestException as lost:
                error = HoldfastError("unreachable", f"{self.urls[node]} does not answer: {lost}")
            attempt += 1
            pause = random.uniform(0.5, 1.0) * min(0.025 * 2 ** (attempt // len(self.urls)), 1.0)
            if not error.is_retryable or time.monotonic() + pause > deadline:
                raise error
            self._prefer_another(node)
            time.sleep(pause)

    def _stream(self, path: str, **params: Any) -> Iterator[tuple[str, Json]]:
        """Server-sent events: the name and the data of each."""
        url = self.urls[self._preferred] + path
        with self._session().get(url, params=params, stream=True, timeout=(CONNECT_S, SILENCE_S)) as answer:
            if not answer.ok:
                raise _refusal(answer)
            name = ""
            for line in answer.iter_lines():
                member, _, value = line.partition(b": ")
                if member == b"event":
                    name = value.decode()
                elif member == b"data":
                    yield name, json.loads(value)

    def _session(self) -> requests.Session:
        # A session keeps its connections, and is for one thread.
        if not hasattr(self._sessions, "session"):
            self._sessions.session = requests.Session()
            self._sessions.session.trust_env = False
        session: requests.Session = self._sessions.session
        return session

    def _prefer_another(self, than: int) -> None:
        if self._preferred == than:
            self._preferred = (than + 1) % len(self.urls)


def payload(value: Any) -> Json | None:
    """A value as a payload: bytes as they are, anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return {"json": value}


def value_of(found: Json | None) -> Any:
    """What a payload holds."""
    if found is None:
        return None
    if "base64" in found:
        return base64.b64decode(found["base64"])
    return found["json"] if "json" in found else found["text"]


def _of(workflow: str) -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}"


def _row(key: str) -> str:
    return f"/v1/outbox/rows/{quote(key, safe='')}"


def _refusal(answer: requests.Response) -> HoldfastError:
    try:
        problem = answer.json()
        return HoldfastError(problem["code"], problem["detail"], problem.get("details"), answer.status_code)
    except (ValueError, KeyError):
        return HoldfastError("protocol", f"status {answer.status_code} without a problem document", {}, 0)
