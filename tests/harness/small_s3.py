"""As much of S3 as the log asks for, in memory, on the loopback interface: for tests where no MinIO can be had.

Conditional puts, ranges, lists and deletions, as HTTP and XML. Signatures are not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Mapping
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_TIME = "2026-01-01T00:00:00.000Z"
_HTTP_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"
Answer = tuple[str, Mapping[str, str], bytes]


class SmallS3:
    def __init__(self) -> None:
        # By bucket and key.
        self.objects: dict[tuple[str, str], bytes] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Its URL."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        # The handlers end with their connections.
        await asyncio.sleep(0)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = (line.partition(":") for line in lines)
                fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                method, target, _ = first.split(" ")
                status, headers, data = self._answer(method, target, fields, body)
                told = {"Content-Length": str(len(data)), **headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
                writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def _answer(self, method: str, target: str, fields: Mapping[str, str], body: bytes) -> Answer:
        parts = urlsplit(target)
        query = {name: found[0] for name, found in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if method == "PUT":
            return self._put((bucket, key), fields, body)
        if method == "POST" and "delete" in query:
            keys = [unescape(one) for one in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for one in keys:
                self.objects.pop((bucket, one), None)
            deleted = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in keys)
            return "200 OK", {}, f"<DeleteResult>{deleted}</DeleteResult>".encode()
        if method == "DELETE":
            self.objects.pop((bucket, key), None)
            return "204 No Content", {}, b""
        if query.get("list-type") == "2":
            return self._list(bucket, query.get("prefix", ""), query.get("start-after", ""))
        data = self.objects.get((bucket, key))
        if data is None:
            return "404 Not Found", {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return _part(data, fields.get("range", ""))

    def _put(self, at: tuple[str, str], fields: Mapping[str, str], body: bytes) -> Answer:
        if "if-none-match" in fields and at in self.objects:
            return "412 Precondition Failed", {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.objects[at] = body
        return "200 OK", {"ETag": _tag(body)}, b""

    def _list(self, bucket: str, prefix: str, after: str) -> Answer:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
            f"<ETag>{escape(_tag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for (of, key), data in sorted(self.objects.items())
            if of == bucket and key.startswith(prefix) and key > after
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return "200 OK", {"Content-Type": "application/xml"}, body.encode()


def _part(data: bytes, wanted: str) -> Answer:
    headers = {"ETag": _tag(data), "Last-Modified": _HTTP_TIME}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
    if found is None:
        return "200 OK", headers, data
    start = int(found[1])
    if start >= len(data):
        return "416 Range Not Satisfiable", {}, b"<Error><Code>InvalidRange</Code></Error>"
    part = data[start : int(found[2]) + 1] if found[2] else data[start:]
    headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
    return "206 Partial Content", headers, part


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
