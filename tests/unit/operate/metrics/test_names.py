"""The dashboard and the alerts in `examples/`: their queries parse, and name metrics that there are."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from support.reference import metrics_table

from celery_sqs_visibility.operate.metrics.names import METRICS, Kind

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples"
DASHBOARD = json.loads((EXAMPLES / "grafana/dashboard.json").read_text())
RULES = [
    rule
    for name in ("alerts", "scaling")
    for group in yaml.safe_load((EXAMPLES / f"prometheus/{name}.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]

QUERIES = {
    **{f"panel {p['title']} {t['refId']}": t["expr"] for p in DASHBOARD["panels"] for t in p["targets"]},
    **{rule.get("alert") or rule["record"]: rule["expr"] for rule in RULES},
}

SERIES = (
    {one.exposed: {*one.labels} for one in METRICS if one.kind is not Kind.HISTOGRAM}
    | {
        f"{one.name}_{part}": {*one.labels, "le"}
        for one in METRICS
        if one.kind is Kind.HISTOGRAM
        for part in ("bucket", "sum", "count")
    }
    | {rule["record"].partition(":")[2]: {"queue"} for rule in RULES if "record" in rule}
)

#: Labels that Prometheus adds to what it scrapes.
SCRAPED = {"instance", "job"}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_parses_and_names_metrics_and_labels_that_there_are(query):
    query = query.replace("$__rate_interval", "5m")
    promql_parser.parse(query)
    named = set(re.findall(r"celery_sqs_\w+", query))
    assert named
    assert named <= set(SERIES)
    grouped = {label for by in re.findall(r"(?:by|on) \(([^)]*)\)", query) for label in by.split(", ")}
    assert grouped <= SCRAPED.union(*(SERIES[name] for name in named))


def test_the_dashboard_shows_every_metric_and_each_panel_has_a_place_of_its_own():
    shown = " ".join(query for name, query in QUERIES.items() if name.startswith("panel"))
    assert [one.exposed for one in METRICS if one.exposed not in shown] == []
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_prometheus_loads_the_alerts_which_all_say_what_is_wrong():
    config = yaml.safe_load((EXAMPLES / "prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml", "scaling.yml"]
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]


def test_the_page_has_the_table_of_all_metrics():
    assert metrics_table() in (ROOT / "docs/metrics.md").read_text()
