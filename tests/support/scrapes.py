"""Read the metrics of a server."""

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from demo.command import Command

_TIMES = ("_bucket", "_created", "_sum")


def counts(text: str) -> dict[str, float]:
    """Return the value of each series except durations, by its name and labels."""
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for sample in samples
        if not sample.name.endswith(_TIMES)
    }


def changes(before: str, after: str) -> Mapping[str, float]:
    """Return the difference of each series that is new or has changed between two scrapes."""
    old, new = counts(before), counts(after)
    return {name: new[name] - old.get(name, 0) for name in new if new[name] != old.get(name)}


def metric(command: Command, name: str) -> float:
    """Sum the series of a command whose names and labels begin with this text."""
    url = f"http://127.0.0.1:{command.address.rpartition(':')[2]}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
