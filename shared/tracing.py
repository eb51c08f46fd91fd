"""OpenTelemetry traces over OTLP/HTTP. Made only where an endpoint is configured: without one nothing is imported.

What else can be set (headers, sampling, limits of the queue) is set by OpenTelemetry's own environment variables.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trunkline.shared.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind

HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
CLOSE_MS = 2000
"""For the last spans to leave."""


class Tracing:
    """Spans are sent by a thread; those that it cannot send are dropped."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """`endpoint`: base URL of a collector; traces go to `/v1/traces` below it. Raises ConfigError."""
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
            raise ConfigError(f"--otlp-endpoint {endpoint!r} is no URL such as http://collector:4318")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise ConfigError(f"--otlp-endpoint needs {error.name!r}: pip install 'trunkline[otel]'") from None
        names = {"service.name": service, "service.instance.id": instance, "service.version": version("trunkline")}
        self.kinds = SpanKind
        self._provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("trunkline", version("trunkline"))
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self,
        name: str,
        parent: "Context | Span | None",
        kind: "SpanKind",
        attributes: Mapping[str, str | int] | None = None,
        at_ns: int | None = None,
    ) -> "Span":
        """`at_ns`: since 1970; None: now. End it."""
        from opentelemetry.trace import Span, set_span_in_context

        context = set_span_in_context(parent) if isinstance(parent, Span) else parent
        return self._tracer.start_span(name, context, kind, attributes, start_time=at_ns)

    def stage(
        self, name: str, parent: "Span", began_ns: int, ended_ns: int, attributes: Mapping[str, str | int]
    ) -> None:
        """What is over already."""
        self.start(name, parent, self.kinds.INTERNAL, attributes, began_ns).end(max(began_ns, ended_ns))

    def received(self, headers: Mapping[str, str]) -> "Context":
        """The caller's span, if its `traceparent` (lower case) says which."""
        from opentelemetry.context import Context

        return self._propagator.extract(headers, Context())

    def sent(self, span: "Span") -> dict[str, str]:
        """Headers that tell whom it calls."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier

    def close(self) -> None:
        """Sends what is there. Blocks for CLOSE_MS at most."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()


def end(span: "Span", error: str, at_ns: int | None = None) -> None:
    """`error`: empty if all went well. `at_ns`: since 1970; None: now."""
    if error:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, error))
    span.end(at_ns)
