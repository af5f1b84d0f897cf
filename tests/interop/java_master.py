"""Compiles the Java client of a checkout of Pulsar that is newer than its released one, and gives its class path.

The environment variable PULSAR_CHECKOUT names the checkout. Nothing of it is stored here: the classes go to a folder
for temporary files, and are kept for the next run on the same sources. Gradle is not used: it would build all of
Pulsar. The libraries are those of the released client and of `interop/master/pom.xml`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from interop.java_program import PROJECT

VARIABLE = "PULSAR_CHECKOUT"
MODULES = (
    "pulsar-common",
    "pulsar-client-api",
    "pulsar-client-api-v5",
    "pulsar-client-admin-api",
    "pulsar-client",
    "pulsar-client-v5",
    "pulsar-client-messagecrypto-bc",
    "pulsar-http-client-api",
    "pulsar-tls-factory-api",
)
COMPILE_SECONDS_MAX = 1200.0
MASTER = PROJECT / "master"
PROTOS = "pulsar-common/src/main/proto"


def checkout() -> Path:
    """The checkout to test with; without one the test is skipped."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"set {VARIABLE} to a checkout of apache/pulsar, newer than its tag v5.0.0-M1")
    found = Path(named)
    if not (found / PROTOS / "PulsarApi.proto").exists():
        pytest.fail(f"{VARIABLE}={named} is no checkout of Pulsar: it has no {PROTOS}/PulsarApi.proto")
    if "entry_hash_min" not in (found / PROTOS / "PulsarApi.proto").read_text():
        pytest.fail(f"{VARIABLE}={named} is too old: its protocol knows no entry buckets")
    return found


def version_of(found: Path) -> str:
    [version] = re.findall(r"^version=(\S+)$", (found / "gradle.properties").read_text(), re.MULTILINE)
    assert isinstance(version, str)
    return version


def classpath(found: Path) -> tuple[str, ...]:
    """Compiles the checkout's client and our program against it, unless that is done already."""
    sources = _sources(found)
    ours = PROJECT / "src/main/java/anabranch/interop/Worker.java"
    print_of = hashlib.sha256()
    for source in (*sources, ours, MASTER / "pom.xml", MASTER / "GenerateProtocol.java"):
        print_of.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"anabranch-pulsar-{print_of.hexdigest()[:16]}"
    libraries, classes, is_done = folder / "libs", folder / "classes", folder / "done"
    if not is_done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        classes.mkdir(parents=True)
        _run("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libraries}", cwd=MASTER)
        path = (*_released_libraries(), f"{libraries}/*")
        _generate(found, folder, libraries)
        # A path for lombok alone: other libraries there may have processors of their own.
        [lombok] = libraries.glob("lombok-*.jar")
        _compile(classes, path, [*sources, *_java_below(folder / "generated"), ours], lombok)
        for module in MODULES:
            if (resources := found / module / "src/main/resources").exists():
                shutil.copytree(resources, classes, dirs_exist_ok=True)
        version = classes / "org/apache/pulsar/pulsar-version.properties"
        version.write_text(f"version={version_of(found)}\n")
        is_done.touch()
    return (str(classes), *_released_libraries(), f"{libraries}/*")


def _released_libraries() -> list[str]:
    """Those of the released client, without itself."""
    found = sorted((PROJECT / "target/libs").glob("*.jar"))
    return [str(one) for one in found if not one.name.startswith(("pulsar-", "slog-"))]


def _java_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.java"))


def _sources(found: Path) -> list[Path]:
    sources = [one for module in MODULES for one in _java_below(found / module / "src/main/java")]
    return [*sources, *sorted((found / PROTOS).glob("*.proto"))]


def _generate(found: Path, folder: Path, libraries: Path) -> None:
    """The classes of the protocol."""
    described, generated = folder / "protocol.bin", folder / "generated"
    generated.mkdir()
    protos = [str(one) for one in sorted((found / PROTOS).glob("*.proto"))]
    protoc = (sys.executable, "-m", "grpc_tools.protoc", f"-I{found / PROTOS}", "--include_imports")
    _run(*protoc, f"--descriptor_set_out={described}", *protos)
    program = MASTER / "GenerateProtocol.java"
    _run("java", "-cp", f"{libraries}/*", str(program), str(described), str(generated))


def _compile(classes: Path, path: Iterable[str], sources: Iterable[Path], processor: Path) -> None:
    listed = classes.parent / "sources.txt"
    listed.write_text("\n".join(str(one) for one in sources if one.suffix == ".java"))
    command = ["javac", "-nowarn", "-J-Xmx1g", "--release", "17", "-processorpath", str(processor)]
    _run(*command, "-cp", ":".join(path), "-d", str(classes), f"@{listed}")


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS_MAX
    )
    if done.returncode:
        pytest.fail(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
