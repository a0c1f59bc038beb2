"""All rows."""

from collections.abc import Sequence

from tests.faults.rows import holds, scale, soak
from tests.faults.scenario import Fault

FAULTS: Sequence[Fault] = [*soak.CHOICE, *scale.FAULTS, *soak.FAULTS, *holds.FAULTS]
