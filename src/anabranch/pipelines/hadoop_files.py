"""The files of a table wherever Spark can write, by the Hadoop client in Spark: hdfs://, s3a://, gs:// and so on.

Object stores have no folders and no rename: a move is a copy there, and the file appears when it is whole. Nothing is
locked; of two runs at once, the one that is second to create a record gives up before it changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anabranch.errors import AnabranchError
from anabranch.pipelines.compaction import Part
from anabranch.pipelines.table_files import Files, LocalFiles, is_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BadPlace(AnabranchError):
    """Spark cannot write there; the message says what is missing."""


def files_for(spark: SparkSession, place: str) -> Files:
    """For a path of this machine, or a URL that Spark knows. BadPlace if it does not."""
    return HadoopFiles(spark, place) if "://" in place else LocalFiles()


class HadoopFiles:
    def __init__(self, spark: SparkSession, place: str) -> None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        context: Any = spark.sparkContext
        self._jvm = context._jvm
        configuration = context._jsc.hadoopConfiguration()
        try:
            self._system = self._path(place).getFileSystem(configuration)
        except Py4JJavaError as error:
            why = str(error.java_exception.getMessage())
            raise BadPlace(
                f"Spark cannot reach {place}: {why}; its file system may need a package (--packages "
                "org.apache.hadoop:hadoop-aws:VERSION for s3a://) and settings (--conf spark.hadoop.NAME=VALUE)"
            ) from None

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def parts(self, folder: str) -> list[Part]:
        if not self.exists(folder):
            return []
        root = self._system.makeQualified(self._path(folder)).toString().rstrip("/") + "/"
        found, listed = [], self._system.listFiles(self._path(folder), True)
        while listed.hasNext():
            status = listed.next()
            path = status.getPath().toString().removeprefix(root)
            if not any(is_hidden(name) for name in path.split("/")):
                found.append(Part(path, int(status.getLen())))
        return sorted(found, key=lambda part: part.path)

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(self._path(folder)))

    def read(self, path: str) -> bytes:
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        folder, _, name = path.rpartition("/")
        draft = self._path(f"{folder}/.{name}.{os.getpid()}")
        stream = self._system.create(draft, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        if self._system.rename(draft, self._path(path)):
            return True
        self._system.delete(draft, False)
        return False

    def persist(self, paths: Iterable[str]) -> None:
        """They are: a file that was closed is stored."""

    def move(self, source: str, target: str) -> None:
        if not self.exists(source):
            return
        self._system.mkdirs(self._path(target).getParent())
        # A copy that was cut off is not there under this name, but the whole of it may be.
        if self.exists(target):
            self._system.delete(self._path(source), False)
        elif not self._system.rename(self._path(source), self._path(target)):
            raise BadPlace(f"{source} cannot be moved to {target}: may this user write there?")

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        yield
