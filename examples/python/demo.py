"""An engine and a worker at work, and everything that an engine has to live with: activities that fail at first,
pauses, a timer, a signal, and an engine that is killed twice. Checks by itself that all came out right.

usage: demo.py [--activities N] [--when-half COMMAND] URL...

`--when-half` runs a command when half of the activities are done, for example one that kills a node.
"""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from engine import OUTCOMES, Context, Engine, Steps
from holdfast import Holdfast, Json, payload, value_of
from worker import Execution, Worker

REST_MS = 1_500
RETRY = {"initial_ms": 50, "maximum_ms": 500, "deliveries_max": 5}
PATIENCE_S = 60.0


def album(workflow: Context, photos: int) -> Steps:
    """Resizes all photos, rests for a while, and publishes them once somebody has approved."""
    small = yield workflow.all([workflow.activity("resize", number, retry=RETRY) for number in range(photos)])
    yield workflow.sleep(REST_MS)
    by = yield workflow.signal("approved")
    place = yield workflow.activity("publish", {"photos": len(small)})
    return {"place": place, "approved_by": by, "bytes": sum(small)}


class Activities:
    """What the worker runs, and a record of what it began."""

    def __init__(self) -> None:
        self.began: list[str] = []

    def resize(self, execution: Execution) -> int:
        self.began.append(execution.key)
        time.sleep(0.15)
        number: int = execution.input
        if number % 3 == 0 and execution.attempt <= 2:
            raise OSError(f"photo {number} cannot be read")
        return number * 100

    def publish(self, execution: Execution) -> str:
        self.began.append(execution.key)
        return f"/albums/{execution.key}"


class Story:
    def __init__(self, urls: list[str], photos: int):
        self.store, self.urls, self.photos = Holdfast(urls), urls, photos
        # A namespace of its own, so that the story can be told next to others.
        self.namespace = self.workflow = f"album-{uuid.uuid4().hex[:8]}"
        self.activities = Activities()
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.2f} s  {text}", flush=True)

    def tell(self, when_half: str | None) -> None:
        started = {"workflow_type": "album", "namespace": self.namespace}
        event = {"kind": "WorkflowStarted", "start": started, "payload": payload(self.photos)}
        self.store.commit(self.workflow, 0, events=[event])
        self.say(f"started {self.workflow} with {self.photos} photos")
        with self.engine() as engine:
            self.until("a quarter of the photos is resized", lambda: self.resized() * 4 >= self.photos)
            self.append("WorkflowPaused")
            self.until("what was in hand is finished", lambda: self.store.counts(self.namespace)["claimed"] == 0)
            self.kill(engine)
        with self.engine() as engine:
            self.stand_still(1.0)
            self.append("WorkflowResumed")
            self.until("half of the photos are resized", lambda: self.resized() * 2 >= self.photos)
            if when_half:
                self.say(f"meanwhile: {when_half}")
                subprocess.run(when_half, shell=True, check=True)
            self.until("the timer is armed", lambda: any(self.store.timers(self.workflow)))
            self.kill(engine)
        with self.engine():
            self.until("the timer has fired", lambda: self.count("TimerFired") > 0)
            # Now there is something that the engine could decide.
            self.append("WorkflowPaused")
            self.append("SignalReceived", {"signal": "approved", "value": "Ada"})
            self.stand_still(0.5)
            self.append("WorkflowResumed")
            self.until("the workflow is completed", lambda: self.status() == "completed")

    def stand_still(self, seconds: float) -> None:
        before = len(self.activities.began), self.store.head(self.workflow)
        time.sleep(seconds)
        after = len(self.activities.began), self.store.head(self.workflow)
        check(before == after, f"nothing begins and nothing is decided in a pause: {before} and {after}")
        self.say(f"nothing happened for {seconds} s")

    def append(self, kind: str, value: Any = None) -> None:
        self.store.append(self.workflow, {"kind": kind, "payload": payload(value)})
        self.say(f"appended {kind}" + (f" {value}" if value else ""))

    def kill(self, engine: subprocess.Popen[bytes]) -> None:
        engine.kill()
        self.say("the engine is killed, and started again")

    @contextmanager
    def engine(self) -> Iterator[subprocess.Popen[bytes]]:
        engine = subprocess.Popen([sys.executable, __file__, "--engine", self.namespace, *self.urls])
        try:
            yield engine
        finally:
            engine.kill()
            engine.wait()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            check(time.monotonic() < deadline, f"{what} within {PATIENCE_S:.0f} s")
            time.sleep(0.02)
        self.say(what)

    def status(self) -> str:
        found = self.store.workflow(self.workflow)
        return str(found["status"]) if found else ""

    def events(self) -> list[Json]:
        return list(self.store.history(self.workflow))

    def count(self, kind: str) -> int:
        return sum(event["kind"] == kind for event in self.events())

    def resized(self) -> int:
        return self.count("ActivityCompleted")

    def audit(self) -> None:
        """Whether all is as it was promised, by what the store has and what the worker did."""
        events, began = self.events(), self.activities.began
        kinds = Counter(event["kind"] for event in events)
        outcomes = Counter(event["ordinal"] for event in events if event["kind"] in OUTCOMES)
        activities = self.photos + 1
        self.print_history(events)
        check([event["seq"] for event in events] == list(range(1, len(events) + 1)), "the history has no gaps")
        check(outcomes == dict.fromkeys(range(1, activities + 1), 1), "each activity has one outcome")
        check(kinds["ActivityCompleted"] == activities, "each activity is completed")
        check(len(began) > activities, f"{len(began)} executions of {activities} activities")
        check(kinds["TimerStarted"] == kinds["TimerFired"] == 1, "the timer fired once")
        check(kinds["WorkflowPaused"] == kinds["WorkflowResumed"] == 2, "two pauses")
        check(events[-1]["kind"] == "WorkflowCompleted", "the workflow is completed")
        result = value_of(events[-1]["payload"])
        check(result["bytes"] == sum(range(self.photos)) * 100 and result["approved_by"] == "Ada", f"{result}")
        check(self.store.counts(self.namespace)["in_flight"] == 0, "no row is left")
        check(not any(self.store.timers(self.workflow)), "no timer is left")
        self.say(f"all is well: {activities} activities, {len(began)} executions, {len(events)} events")

    def print_history(self, events: list[Json]) -> None:
        """The history, with what happened to activities in between summed up."""
        print("the history:")
        for of_activities, group in groupby(events, lambda event: event["kind"].startswith("Activity")):
            together = list(group)
            for part in [together] if of_activities else [[event] for event in together]:
                numbers = f"{part[0]['seq']}" + (f"..{part[-1]['seq']}" if len(part) > 1 else "")
                kinds = Counter(event["kind"] for event in part)
                what = (
                    ", ".join(f"{count} {kind}" for kind, count in kinds.items()) if of_activities else part[0]["kind"]
                )
                value = "" if of_activities or part[0]["payload"] is None else f"  {value_of(part[0]['payload'])}"
                print(f"{(part[-1]['at'] - events[0]['at']) / 1000:6.2f} s  {numbers:>8}  {what}{value}")


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"demo: this does not hold: {what}")


def run_engine(urls: list[str], namespace: str) -> None:
    Engine(Holdfast(urls), namespace, {"album": album}).run()


def run_story(urls: list[str], photos: int, when_half: str | None) -> None:
    story = Story(urls, photos)
    activities: dict[str, Callable[[Execution], Any]] = {
        "resize": story.activities.resize,
        "publish": story.activities.publish,
    }
    worker = Worker(Holdfast(urls), "worker-1", activities, namespace=story.namespace)
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        story.tell(when_half)
        story.audit()
    finally:
        worker.stop()
        working.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine and a worker on Holdfast, and what they live through.")
    parser.add_argument("urls", nargs="+", metavar="URL", help="base URL of a node, such as http://127.0.0.1:7600")
    parser.add_argument("--activities", type=int, default=24, metavar="N", help="how many activities are fanned out")
    parser.add_argument("--when-half", metavar="COMMAND", help="run this when half of them are done")
    parser.add_argument("--engine", metavar="NAMESPACE", help="run the engine alone, until it is killed")
    arguments = parser.parse_args()
    logging.basicConfig(format="          %(name)s: %(message)s", level=logging.WARNING)
    # What is started here is stopped here, also when this is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if arguments.engine:
        run_engine(arguments.urls, arguments.engine)
    else:
        run_story(arguments.urls, arguments.activities, arguments.when_half)


if __name__ == "__main__":
    main()
