"""Options that describe the installation and its certificates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from holdfast.certs import authority, rotation
from holdfast.webhook.cli import options
from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations
from holdfast.webhook.registration.configurations import NAME
from holdfast.webhook.registration.reconciler import Mode
from holdfast.webhook.registration.replicas import Service


@dataclass(frozen=True, slots=True)
class InstallationOptions:
    """How the webhook is installed, and who issues its certificates."""

    certificates: str = "none"
    webhook_service: str = "holdfast-webhook"
    webhook_deployment: str = "holdfast-webhook"
    webhook_health_port: int | None = None
    webhook_configuration: str = NAME
    ca_lifetime: timedelta = authority.CA_LIFETIME
    leaf_lifetime: timedelta = authority.LEAF_LIFETIME
    ca_propagation: timedelta = rotation.PROPAGATION

    @property
    def mode(self) -> Mode:
        """The source of the certificates."""
        return Mode(self.certificates)

    def service(self, namespace: str) -> Service:
        """Describe the webhook's Service."""
        return Service(
            namespace,
            self.webhook_service,
            self.webhook_deployment,
            self.webhook_health_port,
            self.webhook_configuration,
        )

    def plan(self, service: Service) -> rotation.Plan:
        """Describe its certificates."""
        return rotation.Plan(
            service.dns_names, self.ca_lifetime, self.leaf_lifetime, self.ca_propagation
        )


class _Duration(click.ParamType[timedelta]):
    """A duration in the syntax of a delay."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Parse it, or end the command."""
        try:
            return timedelta(milliseconds=durations.parse_delay(value))
        except InvalidValueError as exc:
            return self.fail(str(exc), param, ctx)


_DURATION = _Duration()


def installation(command: options.Function) -> options.Function:
    """Give a command `installation`: the webhook to register, and its certificates."""
    return options.grouped(
        command,
        "installation",
        InstallationOptions,
        click.option(
            "--certificates",
            type=click.Choice([mode.value for mode in Mode]),
            default="none",
            show_default=True,
            help="Issuer of the webhook's certificates: this controller (self) or cert-manager. "
            "The leader then also registers the webhooks. With none, it does neither.",
        ),
        click.option("--webhook-service", default="holdfast-webhook", show_default=True),
        click.option("--webhook-deployment", default="holdfast-webhook", show_default=True),
        click.option(
            "--webhook-health-port",
            type=int,
            help="The webhook's --health-port, if it runs with --client-ca.",
        ),
        options.webhook_configuration,
        click.option("--ca-lifetime", type=_DURATION, default="8760h", show_default=True),
        click.option(
            "--leaf-lifetime",
            type=_DURATION,
            default="720h",
            show_default=True,
            help="Certificates are renewed when a third of their lifetime is left.",
        ),
        click.option(
            "--ca-propagation",
            type=_DURATION,
            default="60s",
            show_default=True,
            help="Time for API servers to see a new CA.",
        ),
    )
