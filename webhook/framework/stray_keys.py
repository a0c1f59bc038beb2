"""Annotations that have no effect where they are: mistyped, or on the wrong object. Pure.

Both the match conditions, in CEL, and the warnings come from here; tests compare them.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from holdfast.webhook.framework import cel
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import OWN_KEYS, OWN_PREFIX, was_released
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload

_MAX_NAMED = 3
"""Warnings about one object."""
_CREATED = "request.operation == 'CREATE'"


class StrayKeys:
    """Finds them by the keys of all plugins that are enabled."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles

    @cached_property
    def _known(self) -> list[str]:
        found = {key for plugin in self._profiles.plugins for key in plugin.keys}
        for plugin in self._profiles.plugins:
            found.update(key for keys in plugin.workload_keys.values() for key in keys)
        return sorted({key for key in found if key.startswith(OWN_PREFIX)} | {*OWN_KEYS})

    @cached_property
    def _holding(self) -> list[str]:
        """The annotations that hold pods, and that mean nothing on a workload itself."""
        return sorted({key for one in self._profiles.plugins if one.gate for key in one.keys})

    # --- match conditions ---------------------------------------------------------------------

    def match(self, pod: str) -> str:
        """Return the CEL expression that is true for a new unknown key of a pod or template."""
        if not self._profiles.plugins:
            return "false"
        field, is_list, within = pod.partition("[]")
        if is_list:  # at any update: items have no old ones to compare with
            found = self._exists(f"each{within}", self._unknown("key"), "")
            return f"{cel.optional(field)}.orValue([]).exists(each, {found})"
        return self._exists(pod, self._unknown("key"), "oldObject" + pod.removeprefix(cel.POD))

    def match_workload(self, kinds: Iterable[str]) -> str:
        """Return the CEL expression that is true for a workload that itself has such a key.

        ReplicaSets have copies of their Deployment's annotations, so owned objects do not match.
        """
        if not self._profiles.plugins:
            return "false"
        misplaced = cel.strings(self._misplaced(kinds))
        test = f"({self._unknown('key')} || key in {misplaced})"
        found = self._exists(cel.POD, test, "oldObject")
        return f"!has(object.metadata.ownerReferences) && {found}"

    def _unknown(self, key: str) -> str:
        # without the prefix, because the API server limits the length of an expression
        names = cel.strings(one.removeprefix(OWN_PREFIX) for one in self._known)
        return (
            f"{key}.startsWith({cel.string(OWN_PREFIX)}) && "
            f"!({key}.substring({len(OWN_PREFIX)}) in {names})"
        )

    @staticmethod
    def _exists(pod: str, test: str, old: str) -> str:
        annotations = cel.optional(f"{pod}.metadata.annotations")
        if old:
            before = cel.optional(f"{old}.metadata.annotations")
            test = f"{test} && ({_CREATED} || !(key in {before}.orValue({{}})))"
        return f"{annotations}.orValue({{}}).exists(key, {test})"

    # --- warnings -----------------------------------------------------------------------------

    def warnings(self, review: PodReview) -> list[str]:
        """Warn about the annotations of a review that have no effect."""
        workload = review.workload
        if workload is None:
            found = [*self._unknown_of(review.pod.annotations, ""), *self._too_late(review)]
        else:
            found = [*self._unknown_of(review.pod.annotations, f"{workload.path}.metadata: ")]
            found += self._of_workload(workload)
        return [f"holdfast: {one}" for one in found[:_MAX_NAMED]]

    def _unknown_of(self, annotations: Mapping[str, str], where: str) -> Iterator[str]:
        for key in annotations:
            if key.startswith(OWN_PREFIX) and key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.8)
                cure = f"did you mean {near[0]}?" if near else "remove or correct it"
                yield f"{where}unknown annotation {messages.quote(key)} has no effect: {cure}"

    def _of_workload(self, workload: Workload) -> Iterator[str]:
        yield from self._unknown_of(workload.annotations, "metadata: ")
        for key in self._misplaced([workload.kind]):
            if key in workload.annotations:
                yield (
                    f"annotation {key} of the {workload.kind} itself has no effect: move it to "
                    f"{workload.path}.metadata.annotations"
                )

    def _misplaced(self, kinds: Iterable[str]) -> list[str]:
        own = {
            key
            for plugin in self._profiles.plugins
            for kind in kinds
            for key in plugin.workload_keys.get(kind, ())
        }
        return [key for key in self._holding if key not in own]

    def _too_late(self, review: PodReview) -> Iterator[str]:
        """Warn about holds that are added to a pod that exists: gates are added at creation."""
        if review.old is None:
            return
        new, old = review.pod.annotations, review.old.annotations
        released = was_released(old, created_ms=review.old.created_ms)
        why = "has already been released" if released else "was created without it"
        for plugin in self._profiles.plugins:
            for key in plugin.keys if plugin.gate and plugin.gate not in review.old.gates else ():
                # A label of that name: the plugin counts released pods by both.
                counts = released and key in review.old.labels
                if key in new and new[key] != old.get(key) and not counts:
                    yield (
                        f"annotation {key} has no effect, because the pod {why}: set it in the "
                        "template of its workload, or create the pod again"
                    )
