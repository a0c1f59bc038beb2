"""What the plugins decide about held pods: when each is due, and what is written at its release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from webhook import holds
from webhook.errors import PluginFailedError
from webhook.framework import Code, Holder, Plugin, Releasing, Result
from webhook.objects import Pod
from webhook.profiles import Profile, Profiles, Verdict
from webhook.review import Edit
from webhook.runner import Observe, described

_log = logging.getLogger("holdfast.plugins")


class Holding(Profiles):
    """Decides about held pods by the plugins of their profiles. Safe to call from any thread."""

    def __init__(
        self, profiles: Iterable[Profile], *, timer: Callable[[], float], observe: Observe
    ) -> None:
        super().__init__(profiles, timer=timer, observe=observe)
        self._allowed: set[tuple[str, str]] = set()
        # isinstance of a protocol costs more than all the rest of a decision
        self._holders = {
            profile.name: [one for one in profile.plugins if isinstance(one, Holder)]
            for profile in self.profiles.values()
        }
        self._releasing = {
            profile.name: [one for one in profile.plugins if isinstance(one, Releasing)]
            for profile in self.profiles.values()
        }

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a held pod is due, by the plugins of its profile that hold it.

        A pod that no plugin of the configuration knows is decided by its annotations and hint, as
        is the delay of one whose profile has no plugin for it any more.
        """
        profile = self.profile_for(pod)
        gates = pod.gates
        holders = self._holders[profile.name] if profile else ()
        asked = [plugin for plugin in holders if plugin.gate in gates]
        decisions = [self._due(plugin, pod) for plugin in asked]
        if not asked or (holds.GATE in gates and all(one.gate != holds.GATE for one in asked)):
            decisions.append(_by_annotations(pod))
        return max(decisions, key=lambda decision: (decision.at_ms, decision.problem))

    def _due(self, plugin: Plugin, pod: Pod) -> holds.Due:
        if (pod.metadata.uid, plugin.name) in self._allowed:
            return holds.Due(pod.created_ms)
        try:
            decision = plugin.due(pod)  # type: ignore[attr-defined]
            at_ms = min(max(int(decision.at_ms), pod.created_ms), holds.NEVER_MS)
            return holds.Due(at_ms, str(decision.problem))
        except Exception as exc:  # noqa: BLE001 - one plugin must not keep all pods
            problem = f"plugin {plugin.name!r} cannot say when it is due: {described(exc)}"
            _log.error("%s/%s: %s", *pod.key, problem)
            return replace(_by_annotations(pod), problem=problem)

    def allow(self, uid: str, plugin: str) -> None:
        """Note that a plugin holds a pod no longer."""
        self._allowed.add((uid, plugin))

    def forget(self, uid: str) -> None:
        """Forget what was noted of a pod that is held no longer."""
        if self._allowed:
            self._allowed = {one for one in self._allowed if one[0] != uid}

    def rechecks(self, pod: Pod) -> bool:
        """Tell whether a plugin wants a say when this pod is released."""
        profile = self.profile_for(pod)
        return profile is not None and any(
            _wants_a_say(plugin, pod) for plugin in self._releasing[profile.name]
        )

    def at_release(self, pod: Pod) -> Verdict:
        """Run `at_release` of each plugin that has it; whatever they say, the pod may go.

        The code is that of the plugin which fared worst.
        """
        profile = self.profile_for(pod)
        if profile is None:
            return Verdict(Code.SKIP)
        return self._runner.timed("release", profile.name, self._at_release, profile, pod)

    def _at_release(self, profile: Profile, pod: Pod) -> Verdict:
        codes: set[Code] = set()
        edits: list[Edit] = []
        warnings: list[str] = []
        for plugin in self._releasing[profile.name]:
            if not _wants_a_say(plugin, pod):
                continue
            try:
                result = self._runner.measured(
                    plugin, "release", profile.name, plugin.at_release, pod
                )
            except PluginFailedError as exc:
                _log.error("%s/%s: %s", *pod.key, exc)
                result = Result(Code.ERROR, reason=str(exc))
            codes.add(result.code)
            edits.extend(result.edits)
            warnings.extend([*result.warnings, *([result.reason] if result.reason else [])])
        worst = next((one for one in (Code.ERROR, Code.REFUSE) if one in codes), Code.SUCCESS)
        return Verdict(worst, edits, (), warnings)


def _wants_a_say(plugin: Plugin, pod: Pod) -> bool:
    """Tell whether to ask a plugin when a pod is released; one that fails is asked, and told of."""
    try:
        return bool(getattr(plugin, "rechecks", plugin.concerns)(pod))
    except Exception as exc:  # noqa: BLE001 - one plugin must not keep all pods
        _log.error("%s/%s: plugin %r failed: %s", *pod.key, plugin.name, described(exc))
        return True


def _by_annotations(pod: Pod) -> holds.Due:
    return holds.decide(
        pod.annotations,
        created_ms=pod.created_ms,
        uid=pod.metadata.uid,
        delay_keys=holds.DELAY_KEYS,
    )
