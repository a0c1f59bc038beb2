"""Everything that was kept of a target, once more: `python -m tests.fuzz.again TARGET`.

In its own process: the audit hook of `tests.fuzz.targets.no_deeds` stays permanently, and alongside
one that is written in Python, threads that begin under a trace function, as coverage's, can fail:
Python 3.11 lets one of them in while another's is being installed.
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
            raise AssertionError(f"{target} fails of {content!r}") from exc


if __name__ == "__main__":
    main()
