"""`anabranch pipeline …`: checks that a pipeline's packages are installed before any of them is imported."""

from __future__ import annotations

import argparse
import importlib

from anabranch.pipelines.session import NoSpark, missing_packages


def run(arguments: argparse.Namespace) -> int:
    if (why := missing_packages()) is not None:
        raise NoSpark(why)
    code: int = importlib.import_module(f"anabranch.cli.{arguments.pipeline}").run(arguments)
    return code
