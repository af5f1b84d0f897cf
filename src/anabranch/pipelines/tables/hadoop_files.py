"""The files of a table wherever Spark can write, by the Hadoop client in Spark: hdfs://, s3a://, gs:// and so on.

Object stores have no folders and no rename: there a move is a copy, and the file appears when it is whole. Nothing is
locked; of two simultaneous runs, the second one to create a record stops before it changes anything. So only one of two
runs may create a file, which the Hadoop client does not promise for every store:

- hdfs:// and related ones: a rename does not replace a file, and the name node performs one after the other.
- s3a:// from Hadoop 3.4.2 on: the store itself creates a file only where there is none, and reports that it can.
- file://: the Hadoop client checks and then renames, so two may both be first. Links of the machine do it.

Other stores are refused, unless the user ensures that there is one run at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from anabranch.errors import AnabranchError
from anabranch.pipelines.tables.core.compaction import TableFile
from anabranch.pipelines.tables.files import LocalFiles, TableStorage, is_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The schemes whose rename atomically refuses to replace an existing file.
_RENAME_CREATES: Final = frozenset({"hdfs", "webhdfs", "swebhdfs", "viewfs"})
# Hadoop's name of this option of new files, and of the capability.
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
_IS_THERE: Final = ("FileAlreadyExistsException", "RemoteFileChangedException")
# The user's assurance that no two jobs write to one table at once.
ONE_RUN: Final = "spark.anabranch.oneRunAtATime"


class BadPlace(AnabranchError):
    """Spark cannot write there; the message says what is missing."""


def files_for(spark: SparkSession, place: str) -> TableStorage:
    """The storage for a path of this machine, or a URL that Spark knows. BadPlace for other URLs."""
    return HadoopFiles(spark, place) if "://" in place else LocalFiles()


class HadoopFiles:
    def __init__(self, spark: SparkSession, place: str) -> None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        context: Any = spark.sparkContext
        self._jvm = context._jvm
        configuration = context._jsc.hadoopConfiguration()
        try:
            self._system = self._path(place).getFileSystem(configuration)
            self._is_conditional = bool(self._system.hasPathCapability(self._path(place), _CONDITIONAL))
        except Py4JJavaError as error:
            why = str(error.java_exception.getMessage())
            raise BadPlace(
                f"Spark cannot reach {place}: {why}; its file system may need a package (--packages "
                "org.apache.hadoop:hadoop-aws:VERSION for s3a://) and settings (--conf spark.hadoop.NAME=VALUE)"
            ) from None
        self._scheme = str(self._system.getUri().getScheme())
        is_alone = str(spark.conf.get(ONE_RUN, "false")).lower() == "true"
        if not (self._scheme in ("file", *_RENAME_CREATES) or self._is_conditional or is_alone):
            raise BadPlace(
                f"{place}: two runs for one table would not exclude each other there and lose or duplicate rows: "
                f"{self._scheme}:// has no way known to Hadoop to create a file only once. Give a place on hdfs://, "
                "s3a:// with Hadoop 3.4.2 or later, or this machine's; or make sure yourself that there is one run at "
                f"a time, and say so: --conf {ONE_RUN}=true"
            )

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _local(self, path: str) -> str:
        return str(self._path(path).toUri().getPath())

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def parts(self, folder: str) -> list[TableFile]:
        if not self.exists(folder):
            return []
        root = self._system.makeQualified(self._path(folder)).toString().rstrip("/") + "/"
        found, listed = [], self._system.listFiles(self._path(folder), True)
        while listed.hasNext():
            status = listed.next()
            path = status.getPath().toString().removeprefix(root)
            if not any(is_hidden(name) for name in path.split("/")):
                found.append(TableFile(path, int(status.getLen())))
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
        if self._scheme == "file":
            return LocalFiles().create(self._local(path), data)
        if self.exists(path):
            return False
        if self._is_conditional:
            return self._create_if_none(path, data)
        folder, _, name = path.rpartition("/")
        draft = self._path(f"{folder}/.{name}.{uuid4()}")
        stream = self._system.create(draft, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        if self._system.rename(draft, self._path(path)):
            return True
        self._system.delete(draft, False)
        return False

    def _create_if_none(self, path: str, data: bytes) -> bool:
        """The store compares when the file is closed; the file appears whole or not at all."""
        from py4j.protocol import Py4JJavaError

        try:
            making = self._system.createFile(self._path(path)).create().recursive()
            stream = making.must(_CONDITIONAL, True).build()
            stream.write(bytearray(data))
            stream.close()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() in _IS_THERE:
                return False
            raise
        return True

    def persist(self, paths: Iterable[str]) -> None:
        """Does nothing: a closed file is stored."""

    def move(self, source: str, target: str) -> None:
        if not self.exists(source):
            return
        self._system.mkdirs(self._path(target).getParent())
        # An interrupted copy does not exist under this name, but a complete one may.
        if self.exists(target):
            self._system.delete(self._path(source), False)
        elif not self._system.rename(self._path(source), self._path(target)):
            raise BadPlace(f"{source} cannot be moved to {target}: may this user write there?")

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        if self._scheme == "file":
            with LocalFiles().locked(self._local(path)):
                yield
        else:
            yield
