"""The syntax of Kubernetes names, label values and annotation keys."""

import re

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")


def is_qualified_name(text: str) -> bool:
    """Return whether a text is a valid key of a label or annotation."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and bool(_NAME.fullmatch(name))


def is_object_name(text: str) -> bool:
    """Return whether a text is a valid object name (a DNS subdomain)."""
    return len(text) <= 253 and bool(_DNS_SUBDOMAIN.fullmatch(text))


def is_label_value(text: str) -> bool:
    """Return whether a text is a valid label value; it may be empty."""
    return not text or (len(text) <= 63 and bool(_NAME.fullmatch(text)))


def is_namespace(text: str) -> bool:
    """Return whether a text is a valid namespace name (a DNS label)."""
    return len(text) <= 63 and bool(re.fullmatch(_DNS_LABEL, text))
