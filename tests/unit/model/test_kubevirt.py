import pytest

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import Instance
from holdfast.webhook.model.objects import Metadata, OwnerReference


@pytest.mark.parametrize(("name", "counts"), [("vm", True), ("other", False)])
def test_vmi_belongs_to_a_vm_of_its_own_name_only(name: str, counts: bool) -> None:
    """A forged VMI could otherwise have the record of any VM in its namespace written."""
    owner = OwnerReference(kubevirt.VM, "vm", "u", f"{kubevirt.GROUP}/v1", controller=True)
    found = kubevirt.vm_of(Instance(Metadata(name=name, owner_references=[owner])))
    assert found == (owner if counts else None)
