"""Values of `holdfast.dev/after` with their meaning. A test compares docs/reference with them."""

import enum
from typing import NamedTuple


class BadObject(enum.StrEnum):
    """Why a value is rejected, and what the message says."""

    NOT_AN_OBJECT = "invalid object"
    NOT_AN_ALLOWED_KIND = "pods cannot wait for the kind"
    NOT_A_CONDITION_OF_THE_KIND = "has no condition"
    TOO_LONG = "is too long"

    @property
    def in_words(self) -> str:
        return self.name.replace("_", " ").lower()


class ObjectsRow(NamedTuple):
    """A value, and either its parsed form or why it is rejected."""

    value: str
    outcome: str | BadObject


OBJECTS: tuple[ObjectsRow, ...] = (
    ObjectsRow("job/migrate", "job/migrate:Complete"),
    ObjectsRow("jobs/migrate", "job/migrate:Complete"),
    ObjectsRow("job/migrate:Failed", "job/migrate:Failed"),
    ObjectsRow("deployment/db", "deployment/db:Available"),
    ObjectsRow("statefulset/db", "statefulset/db:RolledOut"),
    ObjectsRow("daemonset/cni", "daemonset/cni:RolledOut"),
    ObjectsRow("service/db", "service/db:Ready"),
    ObjectsRow("pod/db-0", "pod/db-0:Ready"),
    ObjectsRow("pod/x:PodScheduled", "pod/x:PodScheduled"),
    ObjectsRow("pod/x:example.com/warm", "pod/x:example.com/warm"),
    ObjectsRow("job/a, service/b", "job/a:Complete, service/b:Ready"),
    ObjectsRow("job/a,\n job/a", "job/a:Complete"),
    ObjectsRow("", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/a,", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/A", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/../secrets", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/a:", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/a:b:c", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/a?watch=1", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/a\x00", BadObject.NOT_AN_OBJECT),
    ObjectsRow("job/\u202ea", BadObject.NOT_AN_OBJECT),
    ObjectsRow("Job/a", BadObject.NOT_AN_ALLOWED_KIND),
    ObjectsRow("node/a", BadObject.NOT_AN_ALLOWED_KIND),
    ObjectsRow("secret/creds", BadObject.NOT_AN_ALLOWED_KIND),
    ObjectsRow("service/db:Available", BadObject.NOT_A_CONDITION_OF_THE_KIND),
    ObjectsRow(",".join(f"job/j{number}" for number in range(33)), BadObject.TOO_LONG),
    ObjectsRow(",".join(f"job/j{number}" for number in range(5_000)), BadObject.TOO_LONG),
    ObjectsRow("job/" + "a" * (1 << 20), BadObject.TOO_LONG),
    ObjectsRow("," * (1 << 20), BadObject.TOO_LONG),
    ObjectsRow("job/" + "a" * 254, BadObject.NOT_AN_OBJECT),
)
