"""Annotations and labels without effect: mistyped, or on the wrong object. Pure.

This module defines both the match conditions, in CEL, and the warnings; tests compare them.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice

from holdfast.webhook.framework import cel
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import HELD_LABEL, OWN_KEYS, OWN_PREFIX, was_released
from holdfast.webhook.model.objects import ApiObject, Metadata, Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload

_MAX_NAMED = 3
"""Maximum number of warnings about an object."""
_COMPARED = 100
"""Maximum characters of a key that are compared with the known keys."""
_CREATED = "request.operation == 'CREATE'"
_LIKE_OURS = "holdfast"
"""The prefix of keys that users may mean for Holdfast, such as `holdfast.io/delay`."""
_NESTED = ".spec.template"
"""The path suffix of a pod template inside another template, such as that of a CronJob."""


class StrayKeys:
    """Finds annotations and labels without effect, by the keys of all enabled plugins."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles

    @cached_property
    def _known(self) -> list[str]:
        found = {key for plugin in self._profiles.plugins for key in plugin.keys}
        return sorted(found | {*self._kinds} | OWN_KEYS)

    @cached_property
    def _holding(self) -> list[str]:
        """The annotations that hold pods, and that have no effect on a workload itself."""
        return sorted({key for one in self._profiles.plugins if one.gate for key in one.keys})

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        """The workload kinds, by the annotations that have an effect on the workload itself."""
        listed = (one.workload_keys.items() for one in self._profiles.plugins)
        return {key: kind for items in listed for kind, keys in items for key in keys}

    # --- match conditions ---------------------------------------------------------------------

    def match(self, pod: str) -> str:
        """Return the CEL expression that is true if a pod or template has a new stray key."""
        if not self._profiles.plugins:
            return "false"
        field, is_list, within = pod.partition("[]")
        if is_list:  # matches any update: items have no old versions to compare with
            found = self._match_pod(f"each{within}", "")
            return _any(f"{cel.optional(field)}.orValue([])", "each", found)
        return self._match_pod(pod, "oldObject" + pod.removeprefix(cel.POD))

    def match_workload(self, kinds: Iterable[str]) -> str:
        """Return the CEL expression that is true if a workload itself has a stray key.

        ReplicaSets have copies of their Deployment's annotations, so owned objects do not match.
        """
        if not self._profiles.plugins:
            return "false"
        found = self._match(cel.POD, "oldObject", self._misplaced({*kinds}))
        return f"!has(object.metadata.ownerReferences) && ({found})"

    def _match_pod(self, pod: str, old: str) -> str:
        misplaced = () if pod == cel.POD else [*self._kinds]
        valid = [key for key in self._known if key not in misplaced]
        found = self._match(pod, old, misplaced, valid)
        outer = pod.removesuffix(_NESTED)
        if outer not in {pod, cel.POD}:
            found += f" || {self._match(outer, old.removesuffix(_NESTED), self._holding)}"
        return found

    def _match(
        self, where: str, old: str, misplaced: Iterable[str], valid: Iterable[str] = ()
    ) -> str:
        """Return an expression that is true if this metadata has a new key that may need a warning.

        It is short rather than exact, because the API server limits its length.
        """
        stray = ours = f"key.startsWith({cel.string(_LIKE_OURS)})"
        annotations = _entries(where, "annotations")
        if names := [key[len(OWN_PREFIX) :] for key in valid if key.startswith(OWN_PREFIX)]:
            is_valid = f"key.substring({len(OWN_PREFIX)}) in {cel.strings(names)}"
            stray += f" && !(key.startsWith({cel.string(OWN_PREFIX)}) && {is_valid})"
        if others := [key for key in misplaced if not key.startswith(_LIKE_OURS)]:
            stray += f" || key in {cel.strings(others)}"
        new = f" && ({_CREATED} || !(key in {_entries(old, 'annotations')}))" if old else ""
        found = _any(annotations, "key", f"({stray}){new}")
        label = ours
        if where == cel.POD:  # plugins have set labels of pods
            label += f" && key != {cel.string(HELD_LABEL)} && !(key in {annotations})"
            label += f" && ({_CREATED} || !(key in {_entries(old, 'labels')}))"
        return f"{found} || {_any(_entries(where, 'labels'), 'key', label)}"

    def _misplaced(self, kinds: Collection[str]) -> list[str]:
        return [key for key in self._holding if self._kinds.get(key) not in kinds]

    # --- warnings -----------------------------------------------------------------------------

    def warnings(self, review: PodReview) -> list[str]:
        """Return warnings about the keys of a review that have no effect."""
        workload = review.workload
        found = self._of_pod(review) if workload is None else self._of(workload, review.pod)
        return [f"holdfast: {one}" for one in islice(found, _MAX_NAMED)]

    def _of_pod(self, review: PodReview) -> Iterator[str]:
        pod = review.pod
        if review.old is not None:  # plugins have added labels
            pod = Pod(Metadata(annotations=pod.metadata.annotations))
        yield from self._strays("", pod, {})
        yield from self._too_late(review)

    def _of(self, workload: Workload, template: Pod) -> Iterator[str]:
        path, outer = workload.path, workload.path.removesuffix(_NESTED)
        where = f"{path}.metadata.annotations"
        holding, misplaced = self._holding, self._misplaced([workload.kind])
        of_kinds = {key: f"the {kind}'s metadata.annotations" for key, kind in self._kinds.items()}
        yield from self._strays(f"{path}.metadata: ", template, of_kinds)
        yield from self._strays("metadata: ", workload.own, dict.fromkeys(misplaced, where))
        yield from self._strays(
            f"{outer}.metadata: ", workload.outer, dict.fromkeys(holding, where)
        )

    def _strays(self, where: str, within: ApiObject, misplaced: Mapping[str, str]) -> Iterator[str]:
        """Yield warnings about metadata keys; `misplaced` maps keys to where they belong."""
        for key in within.annotations:
            if key in misplaced:
                yield f"{where}annotation {key} has no effect here: move it to {misplaced[key]}"
            elif (meant := self._meant(key, self._known)) is not None:
                cure = f"did you mean {meant}?" if meant else "remove or correct it"
                yield f"{where}unknown annotation {messages.quote(key)} has no effect: {cure}"
        valid = within.annotations.keys() | {HELD_LABEL}
        for key in within.labels:
            if (meant := self._meant(key, valid)) is not None:
                cure = f"set annotation {meant} instead" if meant else "remove or correct it"
                yield f"{where}label {messages.quote(key)} has no effect: {cure}"

    def _meant(self, key: str, valid: Collection[str]) -> str | None:
        """Return the closest known key, empty if none; None if the key needs no warning."""
        if not key.startswith(_LIKE_OURS) or key in valid:
            return None
        same = OWN_PREFIX + key.partition("/")[2]
        if same in self._known:
            return same
        if not key.startswith(OWN_PREFIX):
            return None
        # Comparing a key of megabytes, in a forged review, would take seconds.
        start = key[:_COMPARED]
        return next(iter(difflib.get_close_matches(start, self._known, n=1, cutoff=0.8)), "")

    def _too_late(self, review: PodReview) -> Iterator[str]:
        """Yield warnings about holds added to an existing pod: gates are only added at creation."""
        if review.old is None:
            return
        new, old = review.pod.annotations, review.old.annotations
        released = was_released(old, created_ms=review.old.created_ms)
        why = "has already been released" if released else "was created without it"
        for plugin in self._profiles.plugins:
            for key in plugin.keys if plugin.gate and plugin.gate not in review.old.gates else ():
                # The plugin counts released pods by the annotation and a label of the same name.
                counts = released and key in review.old.labels
                if key in new and new[key] != old.get(key) and not counts:
                    yield (
                        f"annotation {key} has no effect, because the pod {why}: set it in the "
                        "template of its workload, or create the pod again"
                    )


def _any(of: str, item: str, test: str) -> str:
    """Return an expression that is true if an item passes the test, out of at most MAX_ITEMS."""
    return f"({of}.size() <= {cel.MAX_ITEMS} && {of}.exists({item}, {test}))"


def _entries(of: str, field: str) -> str:
    return f"{cel.optional(f'{of}.metadata.{field}')}.orValue({{}})"
