"""An object store through the library `obstore`: S3 and what speaks its protocol, or a folder of this machine.

Two clients of one store: that of the log gives up after seconds, because the log itself asks again and knows what a
lost answer means; that of all other requests has minutes and tries again itself. The library is loaded when a medium is
made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from anabranch.storage.object.medium import (
    Created,
    MediumError,
    MediumMissingError,
    MediumRefusedError,
)
from anabranch.storage.port import Buffer

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

# S3 deletes at most this many objects in one request.
_DELETE_MAX: Final = 1000
_OPTIONS: Final = {"endpoint", "region", "virtual-hosted"}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where objects are. Credentials are never part of it: URLs are logged and shown."""

    scheme: str
    bucket: str
    prefix: str
    endpoint: str = ""
    region: str = ""
    is_virtual_hosted: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


def parse_url(url: str) -> StoreUrl:
    """`s3://bucket/prefix?endpoint=…&region=…`, or `objects:///folder`. ValueError says what is wrong."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.username or parts.password:
        raise ValueError(
            f"{parts.scheme}://…@{parts.hostname}: credentials do not belong into a URL; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    if parts.scheme == "objects":
        if parts.netloc or not parts.path.strip("/") or options or parts.fragment:
            raise ValueError(f"{url}: expected objects:///folder")
        return StoreUrl("objects", "", unquote(parts.path).rstrip("/"))
    if parts.scheme != "s3":
        raise ValueError(f"{url}: expected s3://bucket/prefix or objects:///folder")
    if not parts.netloc or parts.fragment:
        raise ValueError(f"{url}: expected s3://bucket/prefix")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ValueError(f"{url}: unknown option {unknown[0]}; there are {', '.join(sorted(_OPTIONS))}")
    prefix = unquote(parts.path).strip("/")
    if "//" in prefix or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise ValueError(f"{url}: the prefix is a path of names, none of them empty")
    endpoint = options.get("endpoint", "").rstrip("/")
    if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ValueError(f"{url}: the endpoint is a URL itself, such as https://storage.example.com")
    hosted = options.get("virtual-hosted", "false")
    if hosted not in ("true", "false"):
        raise ValueError(f"{url}: virtual-hosted is true or false")
    return StoreUrl("s3", parts.netloc, prefix, endpoint, options.get("region", ""), hosted == "true")


class ObstoreMedium:
    """Implements `ObjectMedium`. Keys are below `prefix` in the store."""

    def __init__(self, writing: ObjectStore, other: ObjectStore, url: str) -> None:
        # Imported only if needed.
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError

        self._obstore = obstore
        self._exists = AlreadyExistsError
        self._unsupported = NotSupportedError
        # The library raises Python's own errors for some kinds.
        self._failed = (BaseError, OSError, TimeoutError)
        self._writing = writing
        self._other = other
        self._url = url.rstrip("/")

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            await self._obstore.put_async(self._writing, key, data, mode="create", use_multipart=False)
        except self._exists:
            return Created.EXISTS
        except self._unsupported as error:
            raise MediumRefusedError(
                f"the object store cannot create an object only once: {error}"
            ) from error
        except self._failed as error:
            log.debug("creating %s: %s", key, error)
            return Created.UNKNOWN
        return Created.STORED

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        try:
            if length is not None:
                return memoryview(
                    await self._obstore.get_range_async(self._other, key, start=start, length=length)
                )
            options: Any = {"range": {"offset": start}} if start else None
            found = await self._obstore.get_async(self._other, key, options=options)
            return memoryview(await found.buffer_async())
        except FileNotFoundError as error:
            raise MediumMissingError(f"there is no object {key}") from error
        except self._failed as error:
            raise MediumError(f"reading {key} failed: {_short(error)}") from error

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        try:
            async for some in self._obstore.list(self._other, folder, offset=after or None):
                found += [(one["path"], one["size"]) for one in some if one["path"] > after]
        except self._failed as error:
            raise MediumError(f"listing {folder} failed: {_short(error)}") from error
        found.sort()
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        try:
            for at in range(0, len(keys), _DELETE_MAX):
                await self._obstore.delete_async(self._other, list(keys[at : at + _DELETE_MAX]))
        except FileNotFoundError:
            # A folder says so, S3 does not. The rest, one by one.
            for key in keys:
                await self._delete_one(key)
        except self._failed as error:
            raise MediumError(f"deleting failed: {_short(error)}") from error

    async def _delete_one(self, key: str) -> None:
        try:
            await self._obstore.delete_async(self._other, key)
        except FileNotFoundError:
            return
        except self._failed as error:
            raise MediumError(f"deleting {key} failed: {_short(error)}") from error

    async def sign(self, key: str, seconds: int) -> str:
        store: Any = self._other
        try:
            return await self._obstore.sign_async(store, "GET", key, timedelta(seconds=seconds))
        except (*self._failed, TypeError, ValueError) as error:
            raise MediumRefusedError(f"the object store signs no URLs: {_short(error)}") from error

    def url(self, key: str) -> str:
        return f"{self._url}/{key}"

    async def close(self) -> None:
        """The clients close their connections when they are collected."""


def _short(error: BaseException) -> str:
    """The library adds pages of details behind an empty line."""
    return str(error).partition("\n\n")[0].strip() or type(error).__name__


def open_medium(url: str) -> ObstoreMedium:
    """The medium of a URL (`parse_url`); MediumRefusedError if there can be none. Credentials of S3 come from where
    AWS's own tools look for them: the environment, a web identity, the machine's role."""
    where = _usable(url)
    if where.scheme == "objects":
        from obstore.store import LocalStore

        store = LocalStore(where.prefix, mkdir=True)
        return ObstoreMedium(store, store, str(where))
    # Short, and never tried again below the log: it would hide that the log stands still.
    writing = _s3(where, timeout_s=5, connect_s=1, retries=0, retry_s=5)
    other = _s3(where, timeout_s=60, connect_s=5, retries=6, retry_s=60)
    return ObstoreMedium(writing, other, str(where))


def open_for_large_objects(url: str) -> ObstoreMedium:
    """As `open_medium`, for who creates large objects and may take minutes for each; reads are answered soon or not."""
    where = _usable(url)
    if where.scheme == "objects":
        return open_medium(url)
    writing = _s3(where, timeout_s=900, connect_s=5, retries=2, retry_s=60)
    other = _s3(where, timeout_s=30, connect_s=5, retries=2, retry_s=30)
    return ObstoreMedium(writing, other, str(where))


def open_for_readers(url: str) -> ObjectStore:
    """The store of that URL for those that only read it, from any thread. MediumRefusedError if there can be none."""
    where = _usable(url)
    if where.scheme == "objects":
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore

        try:
            return LocalStore(where.prefix)
        except (BaseError, OSError, ValueError) as error:
            raise MediumRefusedError(f"cannot use {where}: {_short(error)}") from error
    return _s3(where, timeout_s=60, connect_s=5, retries=6, retry_s=60)


def _usable(url: str) -> StoreUrl:
    try:
        where = parse_url(url)
    except ValueError as error:
        raise MediumRefusedError(str(error)) from None
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise MediumRefusedError(
            f"a log at {where} needs the package `obstore`: install the extra `objects`"
        ) from None
    return where


def _s3(where: StoreUrl, *, timeout_s: int, connect_s: int, retries: int, retry_s: int) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    settings: dict[str, Any] = {"virtual_hosted_style_request": where.is_virtual_hosted}
    if where.endpoint:
        settings["endpoint"] = where.endpoint
    if where.region:
        settings["region"] = where.region
    try:
        return S3Store(
            where.bucket,
            prefix=where.prefix or None,
            client_options={
                "allow_http": where.endpoint.startswith("http://"),
                "timeout": timedelta(seconds=timeout_s),
                "connect_timeout": timedelta(seconds=connect_s),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=retry_s)},
            **settings,
        )
    except (BaseError, ValueError) as error:
        raise MediumRefusedError(f"cannot use {where}: {_short(error)}") from error
