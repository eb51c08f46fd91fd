"""OpenTelemetry traces over OTLP/HTTP. Made only where an endpoint is configured: without one nothing is imported.

What else can be set (headers, sampling, limits of the queue) is set by OpenTelemetry's own environment variables.
"""

import logging
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trunkline.shared.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Attributes = Mapping[str, str | int]
HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
CLOSE_MS = 2000
"""For the last spans to leave."""
log = logging.getLogger(__name__)


class Tracing:
    """Spans are sent by a thread; those that it cannot send are dropped."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """`endpoint`: base URL of a collector; traces go to `/v1/traces` below it. Raises ConfigError."""
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
            raise ConfigError(f"--otlp-endpoint {endpoint!r} is no URL such as http://collector:4318")
        try:
            from opentelemetry.context import Context
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise ConfigError(f"--otlp-endpoint needs {error.name!r}: pip install 'trunkline[otel]'") from None
        names = {"service.name": service, "service.instance.id": instance, "service.version": version("trunkline")}
        self.kinds = SpanKind
        self._below = set_span_in_context
        self._nothing = Context()
        self._failure = lambda text: Status(StatusCode.ERROR, text)
        self._provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("trunkline", version("trunkline"))
        self._propagator = TraceContextTextMapPropagator()

    def request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> "Span":
        """The span of a request that came; end it. Its parent is the caller's span, if `traceparent` says which.
        Names of headers are in lower case."""
        context = self._propagator.extract(headers, self._nothing)
        return self._tracer.start_span(name, context, self.kinds.SERVER, attributes)

    def call(self, name: str, parent: "Span", attributes: Attributes) -> "tuple[Span, dict[str, str]]":
        """The span of a request that goes to another process, and headers that name it there; end it."""
        span = self._tracer.start_span(name, self._below(parent), self.kinds.CLIENT, attributes)
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self._below(span))
        return span, headers

    def stage(self, name: str, parent: "Span", began_ns: int, ended_ns: int, attributes: Attributes) -> None:
        """What is over already. Times are since 1970."""
        if parent.is_recording():
            context = self._below(parent)
            span = self._tracer.start_span(name, context, self.kinds.INTERNAL, attributes, start_time=began_ns)
            span.end(max(began_ns, ended_ns))

    def end(self, span: "Span", error: str) -> None:
        """`error`: empty if all went well."""
        if error:
            span.set_status(self._failure(error))  # type: ignore[no-untyped-call]
        span.end()

    def close(self) -> None:
        """Sends what is there. Blocks for CLOSE_MS at most."""
        # Of its own it waits for an export under way, for as long as a collector that hangs may take.
        closing = threading.Thread(target=self._provider.shutdown, name="close-tracing", daemon=True)
        closing.start()
        closing.join(CLOSE_MS / 1000)
        if closing.is_alive():
            log.warning("traces: the last spans were not sent within %.0f s", CLOSE_MS / 1000)
