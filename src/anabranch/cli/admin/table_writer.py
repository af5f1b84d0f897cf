"""`anabranch tables run`: a table writer in the foreground, for brokers that run none."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from dataclasses import replace

from anabranch.cli.parsing.access import security_of
from anabranch.client.security import NOBODY
from anabranch.table_writer.process import TableWriterProcess, listing, lower_priority, settings_from
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.place import parse_place


def run_writer(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    lower_priority()
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    security = security_of(arguments) or NOBODY
    told = await asyncio.to_thread(listing, arguments.admin_url, security)
    settings = settings_from(
        told,
        WriterSettings(
            arguments.service_url,
            parse_place(told["tablesUrl"]),
            admin_url=arguments.admin_url,
            security=security,
        ),
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if arguments.once:
        # What there is now is committed at once, and again only if another writer was faster.
        settings = replace(settings, commit_s=min(settings.commit_s, 1.0))
    process = TableWriterProcess(settings, stop, ends_when_caught_up=arguments.once)
    await process.run()
    return 1 if process.failing else 0
