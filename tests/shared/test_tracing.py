"""Traces where the collector is not as it should be."""

import socket
import threading

import pytest

from trunkline.shared import tracing
from trunkline.shared.tracing import Tracing


def test_a_collector_that_hangs_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    monkeypatch.setattr(tracing, "CLOSE_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as collector:
        made = Tracing(f"http://127.0.0.1:{collector.getsockname()[1]}", "test", "one")
        made.end(made.request("GET", {}, {}), "")
        closing = threading.Thread(target=made.close)
        closing.start()
        asking, _ = collector.accept()
        closing.join(30)
        assert not closing.is_alive()
        asking.close()
    assert "the last spans were not sent" in caplog.text
