"""`anabranch tenants`, `clusters`, `brokers` and `schemas`: their requests."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.cli.admin.requests import WAIT, Request, arg, declare, flag
from anabranch.cli.parsing.amounts import words
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import lines, table

# -- tenants

_TENANT = arg("tenant", help="its name")
_ROLES = arg("--admin-roles", type=words, default=[], metavar="ROLE,…", help="roles that may administer it")
_CLUSTERS = arg("--allowed-clusters", type=words, metavar="CLUSTER,…", help="where it may be (default: here)")


def _tenant_body(arguments: argparse.Namespace) -> Any:
    clusters = arguments.allowed_clusters
    if clusters is None:
        # The broker's default is not used: an update must not leave the tenant without a cluster either.
        from anabranch.cli.admin.rest import call

        clusters = call(arguments.admin_url, "GET", "/admin/v2/clusters")
    return {"adminRoles": arguments.admin_roles, "allowedClusters": clusters}


TENANTS = (
    Request("list", "list the tenants", "GET", "/tenants"),
    Request("get", "show a tenant's administrators and clusters", "GET", "/tenants/{tenant}", (_TENANT,)),
    Request(
        "create", "make a tenant", "PUT", "/tenants/{tenant}", (_TENANT, _ROLES, _CLUSTERS), _tenant_body
    ),
    Request(
        "update",
        "replace a tenant's administrators and clusters",
        "POST",
        "/tenants/{tenant}",
        (_TENANT, _ROLES, _CLUSTERS),
        _tenant_body,
    ),
    Request(
        "delete",
        "delete a tenant",
        "DELETE",
        "/tenants/{tenant}",
        (_TENANT, flag("--force", "force", "with its namespaces and all their topics")),
    ),
)

# -- clusters

_CLUSTER = arg("cluster", help="its name")
_URLS = (
    arg("--url", metavar="URL", default="", help="of its admin REST"),
    arg("--url-secure", metavar="URL", default="", help="of its admin REST over TLS"),
    arg("--broker-url", metavar="URL", default="", help="pulsar://…"),
    arg("--broker-url-secure", metavar="URL", default="", help="pulsar+ssl://…"),
)


def _cluster_body(arguments: argparse.Namespace) -> Any:
    return {
        "serviceUrl": arguments.url,
        "serviceUrlTls": arguments.url_secure,
        "brokerServiceUrl": arguments.broker_url,
        "brokerServiceUrlTls": arguments.broker_url_secure,
    }


_DOMAINS = "/clusters/{cluster}/failureDomains"
_DOMAIN = arg("domain", help="its name")


def _domains(found: Mapping[str, Any]) -> list[str]:
    rows = [{"domain": name, "brokers": ",".join(found[name]["brokers"])} for name in found]
    return table(rows, {"DOMAIN": "domain", "BROKERS": "brokers"}, left={0, 1})


CLUSTERS = (
    Request("list", "list the clusters", "GET", "/clusters"),
    Request("get", "show a cluster's addresses", "GET", "/clusters/{cluster}", (_CLUSTER,)),
    Request(
        "create", "make a cluster known", "PUT", "/clusters/{cluster}", (_CLUSTER, *_URLS), _cluster_body
    ),
    Request(
        "update",
        "change a cluster's addresses",
        "POST",
        "/clusters/{cluster}",
        (_CLUSTER, *_URLS),
        _cluster_body,
    ),
    Request("delete", "forget a cluster", "DELETE", "/clusters/{cluster}", (_CLUSTER,)),
    Request(
        "list-failure-domains",
        "list the failure domains of a cluster with their brokers",
        "GET",
        _DOMAINS,
        (_CLUSTER,),
        view=_domains,
    ),
    Request(
        "get-failure-domain", "show one failure domain", "GET", _DOMAINS + "/{domain}", (_CLUSTER, _DOMAIN)
    ),
    *(
        Request(
            name,
            "say which brokers fail together; a broker is in one domain at most",
            "POST",
            _DOMAINS + "/{domain}",
            (
                _CLUSTER,
                _DOMAIN,
                arg(
                    "--brokers",
                    type=words,
                    required=True,
                    metavar="HOST:PORT,…",
                    help="as `brokers list` names them",
                ),
            ),
            lambda a: {"brokers": a.brokers},
        )
        for name in ("create-failure-domain", "update-failure-domain")
    ),
    Request(
        "delete-failure-domain",
        "forget a failure domain",
        "DELETE",
        _DOMAINS + "/{domain}",
        (_CLUSTER, _DOMAIN),
    ),
)

# -- brokers

_SETTING = arg("name", help="as `list-dynamic-config` spells it")

BROKERS = (
    Request("list", "list the brokers", "GET", "/brokers"),
    Request(
        "health",
        "say whether the broker serves: ok, or the reason",
        "GET",
        "/brokers/health",
        (WAIT, flag("--details", "details", "with the disk, and who is held back by what")),
    ),
    Request("ready", "say whether clients may be sent to the broker", "GET", "/brokers/ready"),
    Request("version", "show the broker's version", "GET", "/brokers/version"),
    Request("leader", "show which broker leads", "GET", "/brokers/leaderBroker"),
    Request("config", "show the settings that the broker runs with", "GET", "/brokers/configuration/runtime"),
    Request(
        "list-dynamic-config",
        "list the settings that can be changed while brokers run",
        "GET",
        "/brokers/configuration",
    ),
    Request(
        "get-all-dynamic-config", "show those that were changed so", "GET", "/brokers/configuration/values"
    ),
    Request(
        "update-dynamic-config",
        "change a setting of all brokers at once, until it is deleted here",
        "POST",
        "/brokers/configuration/{name}/{value}",
        (_SETTING, arg("value", help="as in a configuration file")),
    ),
    Request(
        "delete-dynamic-config",
        "take such a change back",
        "DELETE",
        "/brokers/configuration/{name}",
        (_SETTING,),
    ),
)

# -- schemas

# A schema belongs to all partitions and kinds of a topic: the domain is not part of its path.
_TOPIC = arg("schema_topic", metavar="topic", help="`t` is short for public/default/t")
_PATH = "/schemas/{schema_topic}"
_DEFINED = (
    arg("--type", metavar="TYPE", help="AVRO, JSON, PROTOBUF, STRING, INT32 and so on"),
    arg(
        "--file", metavar="FILE", help="the definition: of Avro and JSON, an Avro record; - is standard input"
    ),
    arg("--property", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"),
)


def _schema_body(arguments: argparse.Namespace) -> Any:
    """A file in the form of Pulsar's tools, with `type`, `schema` and `properties`, or a definition with --type."""
    from anabranch.cli.parsing.options import pairs

    text = _read(arguments.file) if arguments.file else ""
    if arguments.type:
        return {
            "type": arguments.type.upper(),
            "schema": text,
            "properties": pairs(arguments.property, "--property"),
        }
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if not isinstance(whole, dict) or not isinstance(whole.get("schema"), str):
        raise UsageError("which type is it? --type AVRO, or a file with `type` and `schema`")
    return whole


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def _versions(found: Any) -> list[str]:
    columns = {"VERSION": "version", "TYPE": "type", "DEFINITION": "data"}
    return table(found["getSchemaResponses"], columns, left={1, 2})


def _schema(found: Any) -> list[str]:
    head = {name: found.get(name) for name in ("version", "type", "properties")}
    try:
        data = json.dumps(json.loads(found["data"]), indent=2)
    except ValueError:
        data = found["data"]
    return [*lines(head), *data.splitlines()]


def _verdict(found: Any) -> list[str]:
    strategy = found["schemaCompatibilityStrategy"]
    if found["compatibility"]:
        return [f"compatible under {strategy}"]
    return [f"not compatible under {strategy}: {found.get('reason') or 'the broker gives no reason'}"]


SCHEMAS = (
    Request(
        "get",
        "show a topic's schema",
        "GET",
        _PATH + "/schema{version}",
        (_TOPIC, arg("--version", type=int, metavar="N", help="that version (default: the latest)")),
        view=_schema,
    ),
    Request(
        "versions",
        "list all versions of a topic's schema",
        "GET",
        _PATH + "/schemas",
        (_TOPIC,),
        view=_versions,
    ),
    Request(
        "upload",
        "add a version of a topic's schema",
        "POST",
        _PATH + "/schema",
        (_TOPIC, *_DEFINED),
        _schema_body,
    ),
    Request(
        "compatibility",
        "say whether a schema could be added under the namespace's strategy; if not, the exit code is 1",
        "POST",
        _PATH + "/compatibility",
        (_TOPIC, *_DEFINED),
        _schema_body,
        view=_verdict,
        is_good=lambda found: bool(found["compatibility"]),
    ),
    Request(
        "delete",
        "delete all versions of a topic's schema",
        "DELETE",
        _PATH + "/schema",
        (_TOPIC, flag("--force", "force", "also while it is used")),
    ),
)


def declare_tenants(parser: argparse.ArgumentParser) -> None:
    declare(parser, TENANTS)


def declare_clusters(parser: argparse.ArgumentParser) -> None:
    declare(parser, CLUSTERS)


def declare_brokers(parser: argparse.ArgumentParser) -> None:
    declare(parser, BROKERS)


def declare_schemas(parser: argparse.ArgumentParser) -> None:
    declare(parser, SCHEMAS)
