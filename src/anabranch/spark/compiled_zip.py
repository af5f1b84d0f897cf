"""`python -m anabranch.spark.compiled_zip`: adds compiled modules to the zip file that Spark's processes import from.

Spark starts a Python process for each step of a query's first use (look for sources, analyse, plan, read), and each of
them compiles the modules of `pyspark.zip` again, half a second of CPU: the installed file has sources only, and Python
does not store modules that it compiles from a zip file. Python of another version continues to use the sources.
"""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile


def find() -> Path | None:
    """The zip file of the PySpark that this Python would import; None if there is none."""
    spec = importlib.util.find_spec("pyspark")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder, "python", "lib", "pyspark.zip")
        if path.is_file():
            return path
    return None


def add_compiled(path: Path) -> int:
    """Adds the modules that the zip file lacks and returns their number. A concurrent reader of the file sees either
    the old or the new one, and old members keep their place in the file."""
    with ZipFile(path) as old:
        names = set(old.namelist())
        lacking = [name for name in names if name.endswith(".py") and f"{name}c" not in names]
        sources = sorted(name for name in lacking if "/tests/" not in name)
        if not sources:
            return 0
        with TemporaryDirectory(dir=path.parent) as folder:
            grown = Path(folder, path.name)
            shutil.copy(path, grown)
            with ZipFile(grown, "a", ZIP_DEFLATED) as new:
                for name in sources:
                    source = old.extract(name, folder)
                    # Not checked by time: those of a zip file have steps of two seconds and no zone.
                    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                    py_compile.compile(
                        source, f"{source}c", dfile=str(path / name), doraise=True, invalidation_mode=mode
                    )
                    new.write(f"{source}c", f"{name}c")
            grown.replace(path)
    return len(sources)


def main() -> int:
    path = find()
    if path is None:
        print("no pyspark.zip is installed here: there is nothing to compile")
        return 0
    try:
        count = add_compiled(path)
    except OSError as error:
        print(f"{path} stays as it is: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {count} modules compiled" if count else f"{path}: all modules are compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
