"""A deterministic workflow engine on Holdfast.

A workflow is a generator function: it yields what it waits for, and gets the result back.

    def order(workflow: Context, order: dict) -> Steps:
        paid = yield workflow.activity("charge", {"amount": order["amount"]})
        yield workflow.sleep(60_000)
        parcels = yield workflow.all([workflow.activity("ship", item) for item in order["items"]])
        return {"paid": paid, "parcels": parcels}

The engine keeps nothing of it. Whenever the workflow's history has grown, the function is run from its beginning, and
whatever it waits for is answered from the history; what the history does not know yet is new, and is committed
in one step with the events that announce it. So the function has to do the same each time: no clock, no chance, no
calls to the outside but through activities. The engine may be killed at any point, and any number of them may run:
a commit that was decided on an older history is refused with `sequence_conflict`, and decided again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast import Holdfast, HoldfastError, Json, payload, value_of

log = logging.getLogger("engine")

# How long the store is asked to wait for a timer.
TIMER_WAIT_MS = 30_000
# A commit takes 1,000 events. A workflow that wants more at once gets the rest with the next replay.
EVENTS_MAX = 900

OUTCOMES = {"ActivityCompleted", "ActivityFailed", "ActivityCancelled"}
STATUS_AFTER = {
    "WorkflowStarted": "running",
    "WorkflowReopened": "running",
    "WorkflowResumed": "running",
    "WorkflowPaused": "paused",
    "WorkflowCompleted": "ended",
    "WorkflowFailed": "ended",
    "WorkflowCancelled": "ended",
    "WorkflowTimedOut": "ended",
    "WorkflowContinuedAsNew": "ended",
}


class ActivityError(Exception):
    """An activity failed for good. A workflow may catch it; one that does not fails."""


class Nondeterminism(Exception):
    """The workflow's code does not do what its history says that it did."""


@dataclass(frozen=True)
class Outcome:
    """What became of something that a workflow waited for."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Step:
    """Something that a workflow can wait for. Without an outcome it has to."""

    outcome: Outcome | None


Steps = Generator[Step, Any, Any]
# The members of a commit.
Parts = dict[str, list[Any]]


@dataclass
class Run:
    """What a history says of its last run, event by event."""

    workflow_type: str = ""
    head: int = 0
    status: str = "running"
    input: Any = None
    activities: dict[int, str] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    armed: dict[str, Json] = field(default_factory=dict)
    fired: set[str] = field(default_factory=set)
    signals: Parts = field(default_factory=dict)

    def add(self, event: Json) -> None:
        kind, value = event["kind"], value_of(event["payload"])
        if kind == "WorkflowStarted":
            self.input = value
        elif kind == "ActivityScheduled":
            self.activities[event["ordinal"]] = value
        elif kind == "ActivityCompleted":
            self.outcomes[event["ordinal"]] = Outcome(value)
        elif kind in OUTCOMES:
            self.outcomes[event["ordinal"]] = Outcome(error=ActivityError(value or kind))
        elif kind == "TimerStarted":
            self.armed[value["timer"]] = {**value, "armed_seq": event["seq"]}
        elif kind == "TimerFired":
            self.armed.pop(value["timer"])
            self.fired.add(value["timer"])
        elif kind == "SignalReceived":
            self.signals.setdefault(value["signal"], []).append(value["value"])
        self.status = STATUS_AFTER.get(kind, self.status)
        self.head = event["seq"]


class Context:
    """What a workflow asks for. Things are told apart by the order in which they are asked for."""

    def __init__(self, run: Run):
        self._run = run
        self._activities = self._timers = 0
        self._signals: dict[str, int] = {}
        self.commit: Parts = {"events": [], "rows": [], "timers": []}

    def activity(self, activity_type: str, input: Any = None, **row: Any) -> Step:
        """Runs an activity on some worker. `row` takes what a row of the outbox has: task_queue, retry, node."""
        self._activities += 1
        ordinal = self._activities
        scheduled = self._run.activities.get(ordinal)
        if scheduled is None and self._has_room():
            # The row is in the same commit as its events: there is no announced activity without work in the outbox.
            self._add("ActivityScheduled", activity_type, ordinal=ordinal)
            self._add("ActivityStarted", None, ordinal=ordinal)
            row |= {"ordinal": ordinal, "activity_type": activity_type, "input": payload(input)}
            self.commit["rows"].append(row)
        elif scheduled not in (None, activity_type):
            raise Nondeterminism(f"activity {ordinal} was {scheduled}, and is {activity_type} now")
        return Step(self._run.outcomes.get(ordinal))

    def sleep(self, ms: int) -> Step:
        """Waits that long, whoever dies meanwhile."""
        self._timers += 1
        timer = f"sleep-{self._timers}"
        if timer in self._run.fired:
            return Step(Outcome())
        if timer not in self._run.armed and self._has_room():
            arming = {"timer": timer, "fire_at": int(time.time() * 1000) + ms}
            self._add("TimerStarted", arming)
            armed_seq = self._run.head + len(self.commit["events"])
            self.commit["timers"].append({"schedule": {**arming, "armed_seq": armed_seq}})
        return Step(None)

    def signal(self, name: str) -> Step:
        """Waits for a signal of that name: the first wait for the first one, the second for the second."""
        received, turn = self._run.signals.get(name, []), self._signals.get(name, 0)
        self._signals[name] = turn + 1
        return Step(Outcome(received[turn]) if turn < len(received) else None)

    def all(self, steps: Sequence[Step]) -> Step:
        """Waits for all of them: the list of their results, or the first failure in it."""
        outcomes = [step.outcome for step in steps if step.outcome is not None]
        if len(outcomes) < len(steps):
            return Step(None)
        failed = next((outcome for outcome in outcomes if outcome.error), None)
        return Step(failed or Outcome([outcome.value for outcome in outcomes]))

    def end(self, kind: str, value: Any) -> None:
        if self._has_room():
            self._add(kind, value)
            # The store takes away what a run leaves armed, and arms nothing for one that has ended.
            self.commit["timers"].clear()

    def _add(self, kind: str, value: Any, **members: Any) -> None:
        self.commit["events"].append({"kind": kind, "payload": payload(value), **members})

    def _has_room(self) -> bool:
        return len(self.commit["events"]) < EVENTS_MAX


Workflow = Callable[[Context, Any], Steps]


def replay(workflow: Workflow, run: Run) -> Parts:
    """Runs a workflow as far as its history goes, and returns what is to be committed."""
    context = Context(run)
    steps = workflow(context, run.input)
    try:
        step = next(steps)
        while step.outcome is not None:
            error, value = step.outcome.error, step.outcome.value
            step = steps.throw(error) if error else steps.send(value)
    except StopIteration as returned:
        context.end("WorkflowCompleted", returned.value)
    except Nondeterminism:
        # The workflow is all right, its code is not.
        raise
    except Exception as error:
        context.end("WorkflowFailed", f"{type(error).__name__}: {error}")
    finally:
        steps.close()
    return context.commit


class Engine:
    """Drives the open workflows of the types that it knows."""

    def __init__(self, store: Holdfast, namespace: str, workflows: dict[str, Workflow]):
        self.store, self.namespace, self.workflows = store, namespace, workflows
        self._runs: dict[str, Run] = {}
        # Timers and growth come on threads of their own. One history is read and extended at a time.
        self._lock = threading.Lock()

    def run(self) -> None:
        """Goes on until the process ends, however it ends."""
        threading.Thread(target=_forever, args=(self._fire_timers,), daemon=True).start()
        _forever(self._follow_heads)

    def _follow_heads(self) -> None:
        for name, message in self.store.watch_heads(self.namespace):
            if name == "grew":
                self.advance(message["workflow"])
            elif name == "dead_letter":
                self.judge(message["key"])
            elif name == "resync":
                for head in self.store.open_heads(min_index=message["index"]):
                    if head["namespace"] == self.namespace:
                        self.advance(head["workflow"])
                for letter in self.store.dead_letters(self.namespace, min_index=message["index"]):
                    if not letter["row"]["failure_delivered"]:
                        self.judge(letter["key"])

    def _fire_timers(self) -> None:
        due = self.store.expired_timers(self.namespace, TIMER_WAIT_MS)
        if due and not any([self.fire(arming) for arming in due]):
            # None of them is of a type that this engine knows, so the next call would not wait.
            time.sleep(1)

    def advance(self, workflow: str) -> None:
        """Lets a workflow do what its history allows. A paused one waits."""

        def decide(run: Run) -> Parts:
            return replay(self.workflows[run.workflow_type], run) if run.status == "running" else {}

        self._commit(workflow, decide)

    def fire(self, arming: Json) -> bool:
        """Records that a timer fired and retires it, in one commit. One that nobody waits for any more is only retired.
        False if it is not this engine's."""
        workflow = arming.pop("workflow")

        def decide(run: Run) -> Parts:
            retired: Parts = {"timers": [{"retire": arming}]}
            if run.status == "ended" or run.armed.get(arming["timer"]) != arming:
                return retired
            return {"events": [{"kind": "TimerFired", "payload": payload({"timer": arming["timer"]})}], **retired}

        return self._commit(workflow, decide)

    def judge(self, key: str) -> None:
        """Records that an activity has used up its attempts, and then that its workflow has heard of it."""
        workflow, _, ordinal = key.rpartition(":")

        def decide(run: Run) -> Parts:
            if run.status == "ended" or int(ordinal) in run.outcomes:
                return {}
            error = payload("no attempt is left")
            return {"events": [{"kind": "ActivityFailed", "ordinal": int(ordinal), "payload": error}]}

        if self._commit(workflow, decide):
            self.store.mark_failure_delivered(key)

    def _commit(self, workflow: str, decide: Callable[[Run], Parts]) -> bool:
        """Commits what is decided on the whole history; if that has grown meanwhile, it is decided again. False if the
        workflow is not for this engine to drive, or stands still until somebody mends it."""
        with self._lock:
            while True:
                try:
                    run = self._read(workflow)
                    parts = decide(run) if run else {}
                    if run and any(parts.values()):
                        self.store.commit(workflow, run.head, **parts)
                    return run is not None
                except HoldfastError as refused:
                    if refused.is_retryable:
                        raise
                    if refused.code != "sequence_conflict":
                        log.error("%s stands still: %s", workflow, refused)
                        return False
                except Exception:
                    # One workflow's trouble is not that of the others.
                    log.exception("%s stands still", workflow)
                    return False

    def _read(self, workflow: str) -> Run | None:
        """What is known of a workflow, and what has come since; none if it is somebody else's."""
        run = self._runs.get(workflow)
        if run is None:
            found = self.store.workflow(workflow)
            if not found or found["namespace"] != self.namespace or found["run"]["workflow_type"] not in self.workflows:
                return None
            run = Run()
        for event in self.store.history(workflow, from_seq=run.head + 1):
            if event["kind"] == "WorkflowStarted":
                # Each run starts afresh; its numbers are its own.
                run = Run(event["start"]["workflow_type"])
            run.add(event)
        self._runs[workflow] = run
        if run.status == "ended":
            del self._runs[workflow]
        return run


def _forever(loop: Callable[[], None]) -> None:
    while True:
        try:
            loop()
        except HoldfastError as error:
            log.warning("no node can serve: %s", error)
            time.sleep(1)
