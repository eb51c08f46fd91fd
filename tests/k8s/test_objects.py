"""What the chart makes, checked by the API server: also what operators define, by the definitions of their makers."""

import pytest
import yaml

from tests.helm.test_chart import GOOD
from tests.k8s.cluster import CHART, custom_resources, run
from tests.k8s.namespace import namespace

pytestmark = pytest.mark.timeout(600, func_only=True)


def test_the_server_takes_what_every_good_value_set_renders() -> None:
    """All but the pod of `helm test`, which wants its account to be there."""
    for path in custom_resources():
        run("kubectl", "apply", "--server-side", "-f", str(path))
    run("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    with namespace("dry") as here:
        for values in GOOD.values():
            sets = [word for value in values for word in ("--set", value)]
            rendered = yaml.safe_load_all(here.helm("template", "tl", str(CHART), *sets))
            known = [one for one in rendered if one and one["kind"] != "Pod"]
            here.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(known))
