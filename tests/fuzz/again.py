"""Replay the seeds and the corpus of a target: `python -m tests.fuzz.again TARGET`.

It needs a separate process: the audit hook of `tests.fuzz.targets.no_deeds` cannot be removed. With
an audit hook in Python, threads that start under a trace function, such as coverage's, can fail:
Python 3.11 may run one thread while it installs the trace function of another.
"""

import sys

from tests.fuzz import corpus
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS


def main() -> None:
    target = sys.argv[1]
    for content in [*seeds(target), *corpus.read(target)]:
        try:
            TARGETS[target](content)
        except Exception as exc:
            raise AssertionError(f"{target} fails on {content!r}") from exc


if __name__ == "__main__":
    main()
