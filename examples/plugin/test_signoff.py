"""A test of a plugin needs only a dict."""

from holdfast_signoff import Signoff, SignoffArgs

from holdfast import Allow, Code, Handle, Pod, Wait

plugin = Signoff(SignoffArgs(), Handle())


def pod(**annotations: str) -> Pod:
    keys = {name.replace("_", "-"): value for name, value in annotations.items()}
    full = {f"example.com/{name}": value for name, value in keys.items()}
    return Pod.of({"metadata": {"annotations": full}})


def test_a_pod_waits_until_it_is_signed_off() -> None:
    waits = Wait(reason="waits for annotation example.com/signed-off-by")
    assert plugin.permit(pod(needs_signoff="true"), 0) == waits
    assert plugin.permit(pod(needs_signoff="true", signed_off_by="ada"), 0) == Allow()


def test_which_pods_it_concerns() -> None:
    assert plugin.concerns(pod(needs_signoff="true"))
    assert not plugin.concerns(pod())
    assert "'example.com/needs-signoff' in object.metadata.annotations" in plugin.match("object")


def test_other_values_are_rejected() -> None:
    result = plugin.validate(pod(needs_signoff="maybe"), None)  # type: ignore[arg-type]
    assert result.code is Code.REJECT
    assert 'use "true", or remove the annotation' in result.reason
