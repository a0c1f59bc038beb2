"""Annotation values that placement rules match."""

MARKS = {"space": {}, "bearing": {}, "late": {"delay": "1"}, "late-bearing": {"delay": "1"}}
"""Annotation values that rules match, with further annotations of the pod. The last two rules apply
at release; the last pod gets its toleration from another rule at creation."""
BEARING = ("bearing", "late-bearing")
