"""A collector of a test's own: takes OTLP over HTTP, in protobuf, and keeps the spans."""

import contextlib
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.http_server import Handler, running


class Span(NamedTuple):
    """Ids in hex; `parent` empty: it has none."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, object]
    error: str
    events: tuple[str, ...]


class Collector:
    """Made by `collector`. Spans come when a process sends them: `Tracing.close` does."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.requests = 0
        self.headers: dict[str, str] = {}
        """Of the last request."""

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        self.requests += 1
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        *(service, one.name, one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex()),
                        *(one.start_time_unix_nano, one.end_time_unix_nano),
                        {each.key: _value(each.value) for each in one.attributes},
                        one.status.message,
                        tuple(event.name for event in one.events),
                    )
                    for one in scope.spans
                ]


@contextlib.contextmanager
def collector(host: str = "127.0.0.1") -> Iterator[Collector]:
    kept = Collector()

    class Traces(Handler):
        def do_POST(self) -> None:
            body = self.body()
            fine = (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            if fine:
                kept.headers = {name.lower(): value for name, value in self.headers.items()}
                kept.take(body)
            self.answer(200 if fine else 404)

    with running(ThreadingHTTPServer((host, 0), Traces)) as kept.url:
        yield kept


def _value(value: AnyValue) -> object:
    return getattr(value, str(value.WhichOneof("value")))
