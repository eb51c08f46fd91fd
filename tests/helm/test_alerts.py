"""The rules, by promtool and beside their runbook."""

import re
import subprocess
from pathlib import Path

import yaml

from trunkline.shared.metrics.agent import AGENT
from trunkline.shared.metrics.router import ROUTER

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "helm/trunkline/files/alerts.yaml"
CASES = Path(__file__).parent / "alerts.yaml"


def rules() -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_rules_and_their_cases() -> None:
    run = subprocess.run(["promtool", "test", "rules", CASES], capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_rule_is_tried_as_it_fires_and_as_it_is_quiet() -> None:
    fires, quiet = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            (fires if check.get("exp_alerts") else quiet).add(check["alertname"])
    assert fires == quiet == {rule["alert"] for rule in rules()}


def test_rules_ask_for_metrics_that_exist_and_have_a_runbook() -> None:
    defined = {str(metric) for metric in (*ROUTER, *AGENT)}
    runbook = (ROOT / "docs/operate/alerts.md").read_text()
    assert {rule["alert"] for rule in rules()} == set(re.findall(r"^## (\w+)", runbook, re.MULTILINE))
    for rule in rules():
        assert set(re.findall(r"trunkline_\w+", str(rule["expr"]))) <= defined
        assert str(rule["annotations"]["runbook"]).endswith(f"#{str(rule['alert']).lower()}")  # type: ignore[index]
