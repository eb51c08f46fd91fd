"""Load for an OpenAI-style endpoint: `locust -f loadtest/locustfile.py --host URL`. See docs/operate/loadtest.md.

A closed loop of users, or an open one with a rate or a trace. Every run leaves a report.
"""

import logging
import random
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import gevent
import gevent.pool
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.html import get_html_report
from locust.runners import MasterRunner, WorkerRunner

from trunkline.loadtest.load import report
from trunkline.loadtest.load.check import find_check
from trunkline.loadtest.load.client import Client
from trunkline.loadtest.load.conversation import Conversation, Request
from trunkline.loadtest.load.options import add_options
from trunkline.loadtest.load.run import Run
from trunkline.loadtest.load.server import find
from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.stream import Answer
from trunkline.shared.errors import ConfigError, TrunklineError

_log = logging.getLogger("trunkline.loadtest")
USERS = 100
STOP_S = 60.0
"""For what is under way when the test ends; answers to it count."""
_LOOK_S = 0.2
_FAILED_PAUSE_S = 0.5
"""A server that fails at once is not asked as fast as it can."""


class _Now:
    """The run that goes on, if any."""

    run: Run | None = None


class _Loaded(User):
    """What users of both loops have in common."""

    abstract = True

    def on_start(self) -> None:
        if _Now.run is None:
            raise RuntimeError("users begin only once `_prepare` has made a run")
        self.load = _Now.run
        self.chance = random.Random()
        self.clients: list[Client] = []

    def on_stop(self) -> None:
        for client in self.clients:
            client.close()

    def send(self, request: Request, due: float) -> Answer:
        """Counts the answer, here and in locust's own statistics."""
        run = self.load
        client = self.clients.pop() if self.clients else Client(run.server.url, run.server.model, run.settings.api_keys)
        run.under_way += 1
        try:
            answer = client.send(request, due)
        except gevent.GreenletExit:  # The test ends: the request stays unfinished.
            client.close()
            raise
        self.clients.append(client)
        run.under_way -= 1
        run.count(request, answer)
        self._show(request, answer)
        return answer

    def go_on(self, conversation: Conversation, due: float) -> Answer:
        """Sends the next request of a conversation, which ends if there is no whole answer to go on from."""
        answer = self.send(conversation.next(), due)
        if answer.whole:
            conversation.answered(answer.text)
        else:
            conversation.end()
        return answer

    def _show(self, request: Request, answer: Answer) -> None:
        """Beside the requests, times to first token and between tokens are rows of locust's tables."""
        self.environment.events.request.fire(
            request_type="POST",
            name=request.kind,
            response_time=1000 * answer.e2e,
            response_length=len(answer.text),
            exception=TrunklineError(answer.error) if answer.error else None,
            context={},
        )
        if answer.whole:
            entries = self.environment.stats.entries
            entries["first token", "TTFT"].log(1000 * answer.ttft, 0)
            for gap in answer.gaps:
                entries["between tokens", "ITL"].log(1000 * gap, 0)


class ClosedLoop(_Loaded):
    """A user in a conversation: waits for the answer, thinks, goes on; after the last turn begins another one."""

    conversation: Conversation | None = None

    def wait_time(self) -> float:
        think = self.load.settings.think
        agent = self.conversation is not None and self.conversation.kind == "agent"
        return 0.0 if agent or not think else self.chance.expovariate(1 / think)

    @task
    def turn(self) -> None:
        first = self.conversation is None
        if self.conversation is None or self.conversation.done:
            self.conversation = self.load.new_conversation()
        answer = self.go_on(self.conversation, time.monotonic())
        if first:
            self.load.settled()
        if answer.error:
            gevent.sleep(_FAILED_PAUSE_S)


class OpenLoop(_Loaded):
    """One for all: sends each request at its time, whatever became of those before."""

    fixed_count = 1

    def on_start(self) -> None:
        super().on_start()
        self.sent = gevent.pool.Pool(self.load.settings.max_open)
        self.begins = self.load.began
        if self.load.settings.settle:
            self.begin_all()

    def begin_all(self) -> None:
        """The first request of every conversation, all at once; arrivals begin when they are answered, if the run has
        not ended before."""
        run, now = self.load, time.monotonic()
        for _ in range(run.settings.open_conversations):
            self.sent.spawn(self.begin, now)
        while self.sent and not run.closed and (left := run.opens - time.monotonic()) > 0:
            self.sent.join(min(left, _LOOK_S))
        self.begins = time.monotonic()

    def begin(self, due: float) -> None:
        self.send_now(None, due)
        self.load.settled()

    @task
    def arrival(self) -> None:
        run = self.load
        found = next(run.arrivals, None)
        if found is None:
            self.sent.join()
            _end(self.environment)
            raise StopUser
        at, request = found
        due = self.begins + at
        gevent.sleep(max(0.0, due - time.monotonic()))
        if self.sent.full():
            run.refuse()
        else:
            self.sent.spawn(self.send_now, request, due)

    def send_now(self, request: Request | None, due: float) -> None:
        if request is not None:
            self.send(request, due)
        else:
            conversation = self.load.idle_conversation()
            self.go_on(conversation, due)
            self.load.give_back(conversation)

    def on_stop(self) -> None:
        """Within --stop-timeout, what is under way is awaited."""
        try:
            self.sent.join()
        finally:
            self.sent.kill()
            super().on_stop()


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser) -> None:
    add_options(parser)
    parser.set_defaults(num_users=USERS, spawn_rate=float(USERS), stop_timeout=STOP_S)


@events.init.add_listener
def _begin(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner | WorkerRunner):
        raise SystemExit("one process measures all of it: this profile runs without --master, --worker and --processes")
    if environment.web_ui is None:
        _prepare(environment)


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    if environment.web_ui is not None:
        _prepare(environment)


@events.test_start.add_listener
def _end_with_the_window(environment: Environment, **_: Any) -> None:
    if _Now.run is not None and _Now.run.settings.window:
        gevent.spawn(_await_end, environment, _Now.run)


def _await_end(environment: Environment, run: Run) -> None:
    while not run.closed and run.left > 0:
        gevent.sleep(min(run.left, _LOOK_S))
    if not run.closed:
        _end(environment)


def _end(environment: Environment) -> None:
    """From outside the greenlets that it ends."""
    runner = environment.runner
    if runner is not None:
        gevent.spawn(runner.quit if environment.web_ui is None else runner.stop)


@events.test_stopping.add_listener
def _stopping(environment: Environment, **_: Any) -> None:
    if _Now.run is not None:
        _Now.run.close()


@events.test_stop.add_listener
def _stop(environment: Environment, **_: Any) -> None:
    run, options = _Now.run, environment.parsed_options
    if run is None or options is None:
        return
    load = {"users": options.num_users, "spawn_rate": options.spawn_rate, "run_time_s": options.run_time}
    files = {
        "summary.json": run.summary(),
        "configuration.json": {**run.configuration(), "load": load},
        "report.html": get_html_report(environment, show_download_link=False),
    }
    try:
        folder = report.write(Path(options.reports), run.started, files)
    except ConfigError as error:
        _fail(environment, error)
    else:
        _log.info("report: %s", folder)
    if run.silent:
        _log.error("no request was answered")
        environment.process_exit_code = 1


def _prepare(environment: Environment) -> None:
    """Looks at everything before the first request. What is wrong is one line, and ends a run without web page."""
    options = environment.parsed_options or Namespace()
    _Now.run = None
    try:
        settings = Settings.of(options)
        report.check(Path(options.reports))
        server = find(environment.host, settings)
        run = _Now.run = Run(settings, server, find_check(server))
    except TrunklineError as error:
        _fail(environment, error)
        return
    if settings.settle:
        run.settle(settings.open_conversations if settings.open_loop else options.num_users)
    environment.user_classes = [OpenLoop if settings.open_loop else ClosedLoop]
    _log.info("%s serves %s, %.2f tokens per word", server.url, server.model, server.tokens_per_word)


def _fail(environment: Environment, error: TrunklineError) -> None:
    if environment.web_ui is None:
        raise SystemExit(f"locust: {error}")
    _log.error("%s", error)
    raise gevent.GreenletExit  # Of the greenlet that was to start users.
