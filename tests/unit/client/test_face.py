"""The public face: every name can be imported, is typed and documented, and costs a broker nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anabranch

ROOT = Path(anabranch.__file__).parents[2]


@pytest.mark.parametrize("name", anabranch.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    found = getattr(anabranch, name)
    assert found.__name__ == name
    assert found.__doc__
    assert name in dir(anabranch)


def test_the_blocking_face_needs_no_import_of_its_own() -> None:
    program = "import anabranch; print(anabranch.blocking.connect.__name__)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "connect"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        anabranch.conect  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_no_client() -> None:
    program = "import sys, anabranch; print([name for name in sys.modules if name.startswith('anabranch.')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_using_the_client_loads_no_optional_package() -> None:
    program = (
        "import sys, anabranch; [getattr(anabranch, name) for name in anabranch.__all__]; "
        "print([name for name in ('cryptography', 'fastavro', 'numba', 'opentelemetry', 'pyarrow', 'pydantic') "
        "if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_a_real_name_to_type_checkers() -> None:
    """What `__getattr__` finds when the program runs, a type checker finds in the imports that only it sees."""
    source = (ROOT / "src" / "anabranch" / "__init__.py").read_text(encoding="utf-8")
    assert [name for name in anabranch.__all__ if f" import {name} as {name}\n" not in source] == []
