"""Options that say how Holdfast is installed in a cluster, and who makes its certificates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from certs import authority, rotation
from webhook import values
from webhook.commands import options
from webhook.errors import ValueRefusedError
from webhook.publisher import Mode
from webhook.replicas import Service


@dataclass(frozen=True, slots=True)
class Installation:
    """How the webhook is installed in the cluster, and who makes its certificates."""

    certificates: str = "none"
    webhook_service: str = "holdfast-webhook"
    webhook_deployment: str = "holdfast-webhook"
    webhook_health_port: int | None = None
    ca_lifetime: timedelta = authority.CA_LIFETIME
    leaf_lifetime: timedelta = authority.LEAF_LIFETIME
    ca_propagation: timedelta = rotation.PROPAGATION

    @property
    def mode(self) -> Mode:
        """Say where the certificates come from."""
        return Mode(self.certificates)

    def service(self, namespace: str) -> Service:
        """Say where the webhook is."""
        return Service(
            namespace, self.webhook_service, self.webhook_deployment, self.webhook_health_port
        )

    def plan(self, service: Service) -> rotation.Plan:
        """Say what its certificates are to be like."""
        return rotation.Plan(
            service.dns_names, self.ca_lifetime, self.leaf_lifetime, self.ca_propagation
        )


class _Duration(click.ParamType[timedelta]):
    """A duration, as a delay is written."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read it; what cannot be read ends the command."""
        try:
            return timedelta(milliseconds=values.parse_delay(value))
        except ValueRefusedError as exc:
            return self.fail(str(exc), param, ctx)


_DURATION = _Duration()


def installation(command: options.Function) -> options.Function:
    """Give a command `installation`: which webhook it registers, with which certificates."""
    return options.grouped(
        command,
        "installation",
        Installation,
        click.option(
            "--certificates",
            type=click.Choice([mode.value for mode in Mode]),
            default="none",
            show_default=True,
            help="Who makes the webhook's certificates: the controller itself, or cert-manager. "
            "The leader then also registers the webhooks; with none, nobody does.",
        ),
        click.option("--webhook-service", default="holdfast-webhook", show_default=True),
        click.option("--webhook-deployment", default="holdfast-webhook", show_default=True),
        click.option(
            "--webhook-health-port",
            type=int,
            help="The --health-port of the webhook, where it has a --client-ca.",
        ),
        click.option("--ca-lifetime", type=_DURATION, default="8760h", show_default=True),
        click.option(
            "--leaf-lifetime",
            type=_DURATION,
            default="720h",
            show_default=True,
            help="Renewed when a third of it is left, as the CA is.",
        ),
        click.option(
            "--ca-propagation",
            type=_DURATION,
            default="60s",
            show_default=True,
            help="How long API servers may take to see a new CA.",
        ),
    )
