"""The fuzzer's own mutations of JSON, as far as a mistake in them would look like one of ours."""

from __future__ import annotations

import json
import tracemalloc

from tests.fuzz.mutations import mutate_json

MOST = 1 << 14


def cut(data: bytes, most: int) -> bytes:
    return data[:most]


def test_no_mutation_takes_memory_for_many_inputs() -> None:
    document = json.dumps({"a": [[[[["b"]]]]]}).encode()
    lengths = set()
    tracemalloc.start()
    try:
        for seed in range(1_500):
            lengths.add(len(mutate_json(document, MOST, seed, cut)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(lengths) > MOST // 2, "nothing was lengthened"
    assert max(lengths) <= MOST
    assert peak < 150 * MOST
