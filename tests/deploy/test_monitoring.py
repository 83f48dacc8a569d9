"""deploy/monitoring: every metric that a rule or a panel names is one that the launcher serves."""

from __future__ import annotations

import json
import re

import pytest

from launcher.control.exporter import FAILED, METRICS
from tests.deploy.schemas import DEPLOY, documents

HERE = DEPLOY / "monitoring"
SERVED = {name for _, name, _, _ in METRICS}
SERVED |= {"launcher_up", "launcher_info", FAILED}


def expressions() -> dict[str, str]:
    """Return each expression, by the name of its alert or the title of its panel."""
    (rules,) = documents(HERE / "alerts.yaml")
    board = json.loads((HERE / "grafana.json").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    return alerts | {one["title"]: one["targets"][0]["expr"] for one in board["panels"]}


@pytest.mark.parametrize("name", expressions())
def test_a_metric_is_served(name: str) -> None:
    """A metric that nothing serves is an alert that never fires."""
    named = set(re.findall(r"launcher_\w+", expressions()[name]))
    assert named and named <= SERVED
