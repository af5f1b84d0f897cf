"""The URL of all tables: a folder, or a place in an object store. Pure.

    /var/lib/tables        s3://lake/tables?endpoint=https://storage.example.com&region=eu-1

The options behind the question mark are those of a log in an object store; `deltalake` and `obstore` get them under
AWS's names. Credentials are never part of a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from anabranch.errors import AnabranchError

_OPTIONS = {"endpoint", "region", "virtual-hosted"}


class BadTablesUrl(AnabranchError, ValueError):
    """The URL names no place where tables can be."""


@dataclass(frozen=True, slots=True)
class TablesPlace:
    base: str  # Without a slash at its end.
    storage_options: tuple[tuple[str, str], ...] = ()

    @property
    def is_folder(self) -> bool:
        return "://" not in self.base

    @property
    def options(self) -> Mapping[str, str]:
        return dict(self.storage_options)


def parse_place(url: str) -> TablesPlace:
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else url
        if not path.startswith("/"):
            raise BadTablesUrl(f"{url}: give the path of a folder from the root on, or s3://bucket/prefix")
        return TablesPlace(path.rstrip("/") or "/")
    if parts.scheme not in ("s3", "s3a", "gs", "az", "abfss"):
        raise BadTablesUrl(f"{url}: expected the path of a folder, s3://bucket/prefix, gs://… or az://…")
    if parts.username or parts.password:
        raise BadTablesUrl(
            f"{parts.scheme}://…@{parts.hostname}: credentials do not belong into a URL; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    told = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(told.keys() - _OPTIONS):
        raise BadTablesUrl(f"{url}: unknown option {unknown[0]}; there are {', '.join(sorted(_OPTIONS))}")
    options: dict[str, str] = {}
    if endpoint := told.get("endpoint", "").rstrip("/"):
        options["AWS_ENDPOINT_URL"] = endpoint
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    if region := told.get("region"):
        options["AWS_REGION"] = region
    if told.get("virtual-hosted") == "true":
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return TablesPlace(
        f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", tuple(sorted(options.items()))
    )
