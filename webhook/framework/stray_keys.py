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
        plugin_keys = {key for plugin in self._profiles.plugins for key in plugin.keys}
        return sorted(plugin_keys | {*self._kinds} | OWN_KEYS)

    @cached_property
    def _holding(self) -> list[str]:
        """The annotations that hold pods, and that have no effect on a workload itself."""
        return sorted(
            {key for plugin in self._profiles.plugins if plugin.gate for key in plugin.keys}
        )

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        """The workload kinds, by the annotations that have an effect on the workload itself."""
        plugin_items = (plugin.workload_keys.items() for plugin in self._profiles.plugins)
        return {key: kind for items in plugin_items for kind, keys in items for key in keys}

    # --- match conditions ---------------------------------------------------------------------

    def match(self, pod: str) -> str:
        """Return the CEL expression that is true if a pod or template has a new stray key."""
        if not self._profiles.plugins:
            return "false"
        field, is_list, item_path = pod.partition("[]")
        if is_list:  # matches any update: items have no old versions to compare with
            test = self._match_pod(f"each{item_path}", "")
            return _any(f"{cel.optional(field)}.orValue([])", "each", test)
        return self._match_pod(pod, "oldObject" + pod.removeprefix(cel.POD))

    def match_workload(self, kinds: Iterable[str]) -> str:
        """Return the CEL expression that is true if a workload itself has a stray key.

        ReplicaSets have copies of their Deployment's annotations, so owned objects do not match.
        """
        if not self._profiles.plugins:
            return "false"
        test = self._match(cel.POD, "oldObject", self._misplaced({*kinds}))
        return f"!has(object.metadata.ownerReferences) && ({test})"

    def _match_pod(self, pod: str, old_pod: str) -> str:
        misplaced_keys = () if pod == cel.POD else [*self._kinds]
        valid_keys = [key for key in self._known if key not in misplaced_keys]
        test = self._match(pod, old_pod, misplaced_keys, valid_keys)
        outer_path = pod.removesuffix(_NESTED)
        if outer_path not in {pod, cel.POD}:
            test += f" || {self._match(outer_path, old_pod.removesuffix(_NESTED), self._holding)}"
        return test

    def _match(
        self,
        path: str,
        old_path: str,
        misplaced_keys: Iterable[str],
        valid_keys: Iterable[str] = (),
    ) -> str:
        """Return an expression that is true if this metadata has a new key that may need a warning.

        It is short rather than exact, because the API server limits its length.
        """
        is_stray = is_ours = f"key.startsWith({cel.string(_LIKE_OURS)})"
        annotations = _entries(path, "annotations")
        if names := [key[len(OWN_PREFIX) :] for key in valid_keys if key.startswith(OWN_PREFIX)]:
            is_valid = f"key.substring({len(OWN_PREFIX)}) in {cel.strings(names)}"
            is_stray += f" && !(key.startsWith({cel.string(OWN_PREFIX)}) && {is_valid})"
        if other_keys := [key for key in misplaced_keys if not key.startswith(_LIKE_OURS)]:
            is_stray += f" || key in {cel.strings(other_keys)}"
        is_new = (
            f" && ({_CREATED} || !(key in {_entries(old_path, 'annotations')}))" if old_path else ""
        )
        annotation_test = _any(annotations, "key", f"({is_stray}){is_new}")
        label_test = is_ours
        if path == cel.POD:  # plugins have set labels of pods
            label_test += f" && key != {cel.string(HELD_LABEL)} && !(key in {annotations})"
            label_test += f" && ({_CREATED} || !(key in {_entries(old_path, 'labels')}))"
        return f"{annotation_test} || {_any(_entries(path, 'labels'), 'key', label_test)}"

    def _misplaced(self, kinds: Collection[str]) -> list[str]:
        return [key for key in self._holding if self._kinds.get(key) not in kinds]

    # --- warnings -----------------------------------------------------------------------------

    def warnings(self, review: PodReview) -> list[str]:
        """Return warnings about the keys of a review that have no effect."""
        workload = review.workload
        warnings = self._of_pod(review) if workload is None else self._of(workload, review.pod)
        return [f"holdfast: {warning}" for warning in islice(warnings, _MAX_NAMED)]

    def _of_pod(self, review: PodReview) -> Iterator[str]:
        pod = review.pod
        if review.old is not None:  # plugins have added labels
            pod = Pod(Metadata(annotations=pod.metadata.annotations))
        yield from self._strays("", pod, {})
        yield from self._too_late(review)

    def _of(self, workload: Workload, template: Pod) -> Iterator[str]:
        path, outer_path = workload.path, workload.path.removesuffix(_NESTED)
        place = f"{path}.metadata.annotations"
        holding_keys, misplaced_keys = self._holding, self._misplaced([workload.kind])
        kind_places = {
            key: f"the {kind}'s metadata.annotations" for key, kind in self._kinds.items()
        }
        yield from self._strays(f"{path}.metadata: ", template, kind_places)
        yield from self._strays("metadata: ", workload.own, dict.fromkeys(misplaced_keys, place))
        yield from self._strays(
            f"{outer_path}.metadata: ", workload.outer, dict.fromkeys(holding_keys, place)
        )

    def _strays(self, prefix: str, owner: ApiObject, places: Mapping[str, str]) -> Iterator[str]:
        """Yield warnings about metadata keys; `places` maps keys to where they belong."""
        for key in owner.annotations:
            if key in places:
                yield f"{prefix}annotation {key} has no effect here: move it to {places[key]}"
            elif (meant_key := self._meant(key, self._known)) is not None:
                cure = f"did you mean {meant_key}?" if meant_key else "remove or correct it"
                yield f"{prefix}unknown annotation {messages.quote(key)} has no effect: {cure}"
        valid_keys = owner.annotations.keys() | {HELD_LABEL}
        for key in owner.labels:
            if (meant_key := self._meant(key, valid_keys)) is not None:
                cure = (
                    f"set annotation {meant_key} instead" if meant_key else "remove or correct it"
                )
                yield f"{prefix}label {messages.quote(key)} has no effect: {cure}"

    def _meant(self, key: str, valid_keys: Collection[str]) -> str | None:
        """Return the closest known key, empty if none; None if the key needs no warning."""
        if not key.startswith(_LIKE_OURS) or key in valid_keys:
            return None
        own_key = OWN_PREFIX + key.partition("/")[2]
        if own_key in self._known:
            return own_key
        if not key.startswith(OWN_PREFIX):
            return None
        # Comparing a key of megabytes, in a forged review, would take seconds.
        start = key[:_COMPARED]
        return next(iter(difflib.get_close_matches(start, self._known, n=1, cutoff=0.8)), "")

    def _too_late(self, review: PodReview) -> Iterator[str]:
        """Yield warnings about holds added to an existing pod: gates are only added at creation."""
        if review.old is None:
            return
        annotations, old_annotations = review.pod.annotations, review.old.annotations
        released = was_released(old_annotations, created_ms=review.old.created_ms)
        history = "has already been released" if released else "was created without it"
        for plugin in self._profiles.plugins:
            for key in plugin.keys if plugin.gate and plugin.gate not in review.old.gates else ():
                # The plugin counts released pods by the annotation and a label of the same name.
                is_counted = released and key in review.old.labels
                if (
                    key in annotations
                    and annotations[key] != old_annotations.get(key)
                    and not is_counted
                ):
                    yield (
                        f"annotation {key} has no effect, because the pod {history}: set it in the "
                        "template of its workload, or create the pod again"
                    )


def _any(path: str, item: str, test: str) -> str:
    """Return an expression that is true if an item passes the test, out of at most MAX_ITEMS."""
    return f"({path}.size() <= {cel.MAX_ITEMS} && {path}.exists({item}, {test}))"


def _entries(path: str, field: str) -> str:
    return f"{cel.optional(f'{path}.metadata.{field}')}.orValue({{}})"
