"""A real Prometheus of a test's own: scrapes what it is told to, and evaluates the chart's rules."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from trunkline.loadtest.fleet.service import HOST, free_ports
from trunkline.shared.processes import die_with_parent

RULES = Path(__file__).parent.parent / "helm/trunkline/files/alerts.yaml"
START_S = 60.0
SCRAPE_S = 0.5


class Prometheus:
    """Made by `prometheus`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query: `metric` (labels) and `value` (time, value as text). Fails for bad ones."""
        answer = self._client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def targets_up(self) -> int:
        return sum(float(sample["value"][1]) == 1 for sample in self.query("up"))

    def firing(self) -> dict[str, dict[str, str]]:
        """Labels of the alerts that fire, by their names."""
        alerts = self._client.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}


def shortened(rules: Path, hold: str) -> dict[str, Any]:
    """The rules as they are, but that an alert fires after `hold`."""
    content: dict[str, Any] = yaml.safe_load(rules.read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = hold
    return content


@contextlib.contextmanager
def prometheus(jobs: Mapping[str, Sequence[str]], hold: str = "1s") -> Iterator[Prometheus]:
    """Scrapes `host:port`s, by name of the job. Alerts fire after `hold` instead of their minutes."""
    executable = shutil.which("prometheus")
    if executable is None:
        raise FileNotFoundError("prometheus is not installed: `make prometheus` says how")
    scrape = [{"job_name": name, "static_configs": [{"targets": list(targets)}]} for name, targets in jobs.items()]
    seconds = f"{round(1000 * SCRAPE_S)}ms"
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="trunkline-prometheus-") as name:
        folder = Path(name)
        (folder / "rules.yaml").write_text(yaml.safe_dump(shortened(RULES, hold)))
        configuration = {
            "global": {"scrape_interval": seconds, "scrape_timeout": seconds, "evaluation_interval": seconds},
            "rule_files": ["rules.yaml"],
            "scrape_configs": scrape,
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        command = [executable, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--web.listen-address={HOST}:{port}"],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        try:
            url = f"http://{HOST}:{port}"
            _await(url, process, folder / "log")
            with httpx.Client(base_url=url, timeout=20.0) as client:
                yield Prometheus(client)
        finally:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/-/ready", timeout=2.0).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"prometheus did not start:\n{log.read_text()[-2000:]}")
