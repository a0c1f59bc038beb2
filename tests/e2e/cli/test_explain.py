"""`holdfast explain`; `tests/e2e/test_pages.py` explains a held pod."""

from tests.e2e.cli.commands import Cli
from tests.e2e.namespace import Namespace, pod
from tests.e2e.workloads import workload


def test_explain_shows_the_schedulers_message(ns: Namespace, cli: Cli) -> None:
    ns.apply(pod("nowhere", nodeSelector={"disk": "fast"}))
    ns.eventually(lambda: "Unschedulable" in cli.output("explain", "nowhere"))
    assert "scheduler: Unschedulable: 0/3 nodes" in cli.output("explain", "nowhere")


def test_explain_a_changed_template(ns: Namespace, cli: Cli) -> None:
    ns.apply(workload("StatefulSet", "1h"))
    ns.eventually(lambda: ns.all("pods"))
    ns.apply(workload("StatefulSet", "5s"))
    advice = 'the template of StatefulSet it has changed; to apply delay "5s", delete the pod'
    assert advice in cli.output("explain", "it-0")
