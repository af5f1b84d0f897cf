"""Profiles: brokers and credentials under a name, from a file, so that no command line has to repeat them.

    # ~/.config/anabranch/config.toml, or $ANABRANCH_CONFIG
    default = "local"

    [profiles.local]
    service_url = "pulsar://127.0.0.1:6650"
    admin_url = "http://127.0.0.1:8080"

    [profiles.production]
    service_url = "pulsar+ssl://broker:6651"
    admin_url = "https://broker:8443"
    token_file = "/etc/anabranch/token"
    tls_trust_certs = "/etc/anabranch/ca.pem"

An option wins over a variable, a variable over the profile, the profile over Pulsar's client.conf, if
$PULSAR_CLIENT_CONF names one. Commands that need no broker never read either file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from anabranch.cli.parsing.options import UsageError

PROFILE: Final = "ANABRANCH_PROFILE"
FILE: Final = "ANABRANCH_CONFIG"
CLIENT_CONF: Final = "PULSAR_CLIENT_CONF"
SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
ADMIN_URL: Final = "http://127.0.0.1:8080"

# What a profile may say: the type of its value.
FIELDS: Final[Mapping[str, type]] = {
    "service_url": str,
    "admin_url": str,
    "token": str,
    "token_file": str,
    "user": str,
    "password": str,
    "tls_trust_certs": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_allow_insecure": bool,
}
# The variables that win over a profile.
_VARIABLES: Final[Mapping[str, str]] = {
    "service_url": "ANABRANCH_SERVICE_URL",
    "admin_url": "ANABRANCH_ADMIN_URL",
    "token": "ANABRANCH_TOKEN",
    "password": "ANABRANCH_PASSWORD",
    "tls_trust_certs": "ANABRANCH_TRUST_CERTS_FILE",
}
_DEFAULTS: Final[Mapping[str, str]] = {"service_url": SERVICE_URL, "admin_url": ADMIN_URL}
_PROOFS: Final = ("token", "user", "password")


def complete(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> None:
    """Fills in what the command line leaves open about brokers and credentials. UsageError for a profile that does not
    exist, or says what no profile may."""
    if not hasattr(arguments, "profile"):
        return  # The command reaches no broker.
    found = chosen(getattr(arguments, "profile", None), environment)
    known = {field for field, name in _VARIABLES.items() if environment.get(name)}
    if getattr(arguments, "token", None) or getattr(arguments, "user", None) or "token" in known:
        # One identity, not parts of two.
        found = {field: value for field, value in found.items() if field not in _PROOFS}
    for field in FIELDS:
        if getattr(arguments, field, None) or not (hasattr(arguments, field) or field == "password"):
            continue
        if field not in known:
            value = found.get(field) or _DEFAULTS.get(field)
        elif field in _DEFAULTS:
            value = environment[_VARIABLES[field]]
        else:
            continue  # `access.security_of` reads those variables itself.
        if value is not None:
            setattr(arguments, field, value)


def chosen(name: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the profile says that is asked for, or that the file has as its default; else what Pulsar's client.conf
    says."""
    name = name or environment.get(PROFILE)
    path = config_path(environment)
    if path.is_file():
        config = _read(path)
        profiles = config.get("profiles", {})
        name = name or config.get("default")
        if name is not None:
            if name not in profiles:
                known = ", ".join(sorted(profiles)) or "none"
                raise UsageError(f"there is no profile {name!r} in {path}; it has {known}")
            return _checked(profiles[name], name, path)
    elif name is not None:
        raise UsageError(f"there is no profile {name!r}: {path} does not exist")
    conf = environment.get(CLIENT_CONF)
    return client_conf(Path(conf)) if conf else {}


def config_path(environment: Mapping[str, str]) -> Path:
    if named := environment.get(FILE):
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    return Path(folder) / "anabranch" / "config.toml"


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # Only for users who have such a file.

    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    unknown = sorted(set(config) - {"default", "profiles"})
    profiles = config.get("profiles", {})
    if (
        unknown
        or not isinstance(profiles, dict)
        or not all(isinstance(one, dict) for one in profiles.values())
    ):
        what = f" ({unknown[0]!r} is neither)" if unknown else ""
        raise UsageError(f"{path}: expected `default` and tables such as [profiles.production]{what}")
    return config


def _checked(profile: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    for field, value in profile.items():
        kind = FIELDS.get(field)
        if kind is None:
            raise UsageError(f"{path}: profile {name} has {field!r}; there are {', '.join(FIELDS)}")
        if not isinstance(value, kind):
            expected = "true or false" if kind is bool else "text"
            raise UsageError(f"{path}: {field} of profile {name} must be {expected}")
    found = dict(profile)
    if (file := found.pop("token_file", None)) is not None:
        found["token"] = f"file://{Path(file).expanduser()}"
    return found


# -- Pulsar's client.conf


def client_conf(path: Path) -> dict[str, Any]:
    """What that file says, by the names of a profile. Settings that are nothing to this command line are ignored."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"${CLIENT_CONF}: cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    said = {name.strip(): value.strip() for name, equals, value in pairs if equals and value.strip()}
    found: dict[str, Any] = {}
    for name, field in (
        ("brokerServiceUrl", "service_url"),
        ("webServiceUrl", "admin_url"),
        ("tlsTrustCertsFilePath", "tls_trust_certs"),
        ("tlsCertificateFilePath", "tls_cert"),
        ("tlsKeyFilePath", "tls_key"),
    ):
        if name in said:
            found[field] = said[name].rstrip("/") if field.endswith("url") else said[name]
    found["tls_allow_insecure"] = said.get("tlsAllowInsecureConnection", "").lower() == "true"
    return found | _identity(said.get("authPlugin", ""), said.get("authParams", ""), path)


def _identity(plugin: str, params: str, path: Path) -> dict[str, str]:
    kind = plugin.rpartition(".")[2].lower()
    if not kind:
        return {}
    given = _params(params)
    if kind in ("authenticationtoken", "token"):
        text = given.get("token") or (f"file:{given['file']}" if "file" in given else params)
        return {"token": text}
    if kind in ("authenticationtls", "tls"):
        names = (("tls_cert", "tlsCertFile"), ("tls_key", "tlsKeyFile"))
        return {field: given[name] for field, name in names if name in given}
    if kind in ("authenticationbasic", "basic") and "userId" in given:
        return {"user": given["userId"], "password": given.get("password", "")}
    raise UsageError(
        f"{path}: authPlugin {plugin} is not for this command line; it knows tokens, TLS and passwords"
    )


def _params(text: str) -> dict[str, str]:
    """`{"token": "x"}`, or `token:x`, or `tlsCertFile:a,tlsKeyFile:b`."""
    import json

    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return {str(name): str(value) for name, value in found.items()}
    if text.startswith(("token:", "file:")):
        name, _, value = text.partition(":")
        return {name: value}
    return {name: value for name, colon, value in (p.partition(":") for p in text.split(",")) if colon}
