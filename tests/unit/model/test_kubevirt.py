import pytest

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import Instance
from holdfast.webhook.model.objects import Metadata, OwnerReference


@pytest.mark.parametrize(("name", "counts"), [("vm", True), ("other", False)])
def test_vmi_belongs_only_to_a_vm_of_the_same_name(name: str, counts: bool) -> None:
    """Otherwise, a forged VMI could overwrite the record of any VM in its namespace."""
    owner = OwnerReference(kubevirt.VM, "vm", "u", f"{kubevirt.GROUP}/v1", controller=True)
    vm = kubevirt.vm_of(Instance(Metadata(name=name, owner_references=[owner])))
    assert vm == (owner if counts else None)
