"""`anabranch log gc|verify|tier`: looks after a log in an object store, and at what was moved there.

`gc` and `verify` read the topics' records in the metadata and the objects themselves, and need no broker. In a cluster
brokers may go on meanwhile; a folder's metadata can only be opened while no broker serves it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.cli.parsing.broker_options import declare_config_file, declare_stores, settings
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.dag import aligned

if TYPE_CHECKING:
    from anabranch.broker.config.config import BrokerConfig
    from anabranch.metadata.port import MetadataStore
    from anabranch.storage.object.checking import LogChecker, LogSurvey
    from anabranch.storage.object.collecting import Collected
    from anabranch.storage.object.medium import ObjectMedium
    from anabranch.storage.port import LiveLedger


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    gc = actions.add_parser(
        "gc",
        help="delete what is garbage of a log in an object store, or show it",
        description="Lists all objects and says, for each broker's log, how much of it the topics want, what "
        "brokers would delete after their delay, what they would rewrite, and what is garbage: objects that "
        "nothing names. Without --dry-run it looks a second time after a delay, and deletes the garbage that both "
        "looks prove. Fences stay, and what is merely dead is left to the brokers.",
    )
    gc.add_argument("--dry-run", action="store_true", help="delete nothing")
    gc.add_argument(
        "--delay",
        type=float,
        metavar="S",
        help="seconds between the two looks (default: logObjectDeleteDelaySeconds, 1800)",
    )
    gc.add_argument("--list", action="store_true", help="name each object that would go")
    verify = actions.add_parser(
        "verify",
        help="read everything back that topics want of a log in an object store",
        description="Reads every object that holds entries which topics want, and checks each record. The exit code is "
        "1 if an entry is missing or damaged; each is shown with its object and offset. This reads all of the log.",
    )
    tier = actions.add_parser(
        "tier",
        help="show which files of a log on disk were moved to an object store (logTierUrl)",
        description="Compares the index files in the data folder with the objects: how many files were moved, "
        "which objects are missing, and which ones no index file names. Changes nothing, needs no broker, and may "
        "run beside one. The exit code is 1 if an object is missing or an index file is damaged, and with --verify if "
        "a record is.",
    )
    tier.add_argument("--verify", action="store_true", help="read all objects and check every record")
    for made, action in ((gc, "gc"), (verify, "verify"), (tier, "tier")):
        made.set_defaults(module="broker.log", action=action)
        declare_stores(made)
        made.add_argument("--data-dir", metavar="DIR", help="the folder of a broker without --metadata")
        declare_config_file(made)
        made.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    config = settings(arguments).config
    if arguments.action == "tier":
        return asyncio.run(_tier(config, arguments))
    if not config.log_url or config.log_url.startswith("file:"):
        raise UsageError("logUrl names no object store: use --log s3://bucket/prefix")
    if not config.metadata_store_url and not Path(config.data_dir).is_dir():
        raise UsageError(
            f"there is no folder {config.data_dir}: name it with --data-dir, or a cluster with --metadata"
        )
    work = _gc if arguments.action == "gc" else _verify
    return asyncio.run(work(config, arguments))


async def _gc(config: BrokerConfig, arguments: argparse.Namespace) -> int:
    from anabranch.storage.object.checking import LogChecker

    async with _opened(config) as (metadata, medium):
        checker = LogChecker(medium)
        try:
            logs = [one async for one in checker.survey(await _records(metadata))]
            if not arguments.json:
                _show(logs, has_keys=arguments.list)
            collected = None
            if not arguments.dry_run:
                collected = await _collected(config, arguments, logs, checker, metadata, medium)
        finally:
            await checker.close()
    if arguments.json:
        shown: Any = [asdict(one) for one in logs]
        print(json.dumps(shown if collected is None else {"logs": shown, **asdict(collected)}, indent=2))
    elif collected is not None:
        print(f"deleted: {_sum(collected.deleted)}")
        print(f"garbage that is not proved, kept: {_sum(collected.kept)}")
    errors = [error for one in logs for error in one.errors]
    for error in errors:
        print(f"anabranch: {error}", file=sys.stderr)
    return 1 if errors else 0


async def _collected(
    config: BrokerConfig,
    arguments: argparse.Namespace,
    before: list[LogSurvey],
    checker: LogChecker,
    metadata: MetadataStore,
    medium: ObjectMedium,
) -> Collected:
    from anabranch.storage.object.collecting import Collected, LogCollector

    if not any(one.garbage for one in before):
        return Collected()
    delay = config.log_object_delete_delay_seconds if arguments.delay is None else arguments.delay
    if delay and not arguments.json:
        print(f"looking again in {delay:g} s", flush=True)
    await asyncio.sleep(delay)
    after = [one async for one in checker.survey(await _records(metadata))]
    return await LogCollector(medium).collect(before, after)


def _show(logs: list[LogSurvey], *, has_keys: bool) -> None:
    rows = [
        (
            one.incarnation,
            one.state,
            str(one.objects),
            str(one.size),
            str(one.wanted),
            _sum(one.dead),
            _sum(one.mostly_dead),
            _sum(one.garbage),
            str(one.fences),
        )
        for one in logs
    ]
    head = ("LOG", "STATE", "OBJECTS", "BYTES", "WANTED", "WOULD GO", "MOSTLY DEAD", "GARBAGE", "FENCES")
    print("\n".join(aligned([head, *rows], left={0, 1})))
    if has_keys:
        for one in logs:
            for what, keys in (("would go", one.dead), ("garbage", one.garbage)):
                for key, size in keys:
                    print(f"{what}: {key} ({size} bytes)")


def _sum(keys: list[tuple[str, int]]) -> str:
    return f"{len(keys)} ({sum(size for _, size in keys)} bytes)" if keys else "-"


async def _verify(config: BrokerConfig, arguments: argparse.Namespace) -> int:
    from anabranch.storage.object.checking import LogChecker, Verified

    total = Verified()
    async with _opened(config) as (metadata, medium):
        checker = LogChecker(medium)
        try:
            async for incarnation, one in checker.verify(await _records(metadata)):
                total.objects += one.objects
                total.size += one.size
                total.entries += one.entries
                total.faults += one.faults
                if not arguments.json:
                    print(
                        f"{incarnation}: {one.entries} entries in {one.objects} objects of {one.size} bytes"
                    )
                    for fault in one.faults:
                        print(f"anabranch: {fault}", file=sys.stderr)
        finally:
            await checker.close()
    if arguments.json:
        print(json.dumps(asdict(total), indent=2))
    else:
        bad = f"{len(total.faults)} faults" if total.faults else "all of them can be read"
        print(f"{total.entries} entries: {bad}")
    return 1 if total.faults else 0


async def _tier(config: BrokerConfig, arguments: argparse.Namespace) -> int:
    from anabranch.broker.runtime.data_folder import LOG
    from anabranch.broker.stores import object_medium, tier_refusals, tier_url
    from anabranch.storage.on_disk.files import OsFiles
    from anabranch.storage.tier.checking import survey, verify

    if not config.log_tier_url:
        raise UsageError(
            "logTierUrl names no object store: nothing is moved (--config, or ANABRANCH_logTierUrl)"
        )
    root = Path(config.data_dir) / LOG
    if not root.is_dir():
        raise UsageError(f"there is no log in {config.data_dir}: name its folder with --data-dir")
    entries, faults = 0, []
    with tier_refusals():
        medium = object_medium(tier_url(config))
        found = await survey(OsFiles(), root, medium)
        if arguments.verify:
            async for _, count, wrong in verify(OsFiles(), root, medium):
                entries += count
                faults += wrong
        await medium.close()
    if arguments.json:
        print(
            json.dumps({**asdict(found), "entries": entries, "faults": list(map(asdict, faults))}, indent=2)
        )
    else:
        print(f"{found.objects} files of {found.size} bytes in {config.log_tier_url.partition('?')[0]}")
        for key, size in found.orphans:
            print(f"no index file names {key} ({size} bytes)")
        if arguments.verify:
            print(f"{entries} entries: {f'{len(faults)} faults' if faults else 'all of them can be read'}")
    told = [f"{key}: there is no such object" for key in found.missing]
    told += [f"{path}: the index file is damaged" for path in found.damaged]
    for fault in dict.fromkeys([*told, *map(str, faults)]):
        print(f"anabranch: {fault}", file=sys.stderr)
    return 1 if told or faults else 0


async def _records(metadata: MetadataStore) -> list[LiveLedger]:
    from anabranch.broker.catalog.resources import MANAGED_LEDGERS
    from anabranch.storage.core.topic_record import TopicRecord, namespace_of

    found: list[LiveLedger] = []
    for path, stored in await metadata.scan(MANAGED_LEDGERS):
        record = TopicRecord.decode(stored.value)
        if not record.is_deleting:
            found += record.live(path, namespace_of(path))
    return found


@contextlib.asynccontextmanager
async def _opened(config: BrokerConfig) -> AsyncIterator[tuple[MetadataStore, ObjectMedium]]:
    """The metadata and the object store that it names."""
    from anabranch.broker.runtime import object_identity
    from anabranch.broker.stores import object_medium, object_refusals

    async with contextlib.AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(_metadata(config))
        with object_refusals():
            medium = object_medium(config.log_url)
            stack.push_async_callback(medium.close)
            await object_identity.check_belongs(metadata, medium)
        with object_refusals():
            yield metadata, medium


@contextlib.asynccontextmanager
async def _metadata(config: BrokerConfig) -> AsyncIterator[Any]:
    if config.metadata_store_url:
        from anabranch.broker.cluster_stores import metadata_of

        async with metadata_of(config) as metadata:
            yield metadata
        return
    from anabranch.broker.stores import lock_folder, opened_metadata

    data = Path(config.data_dir)
    lock = await lock_folder(data)
    try:
        async with opened_metadata(data) as (_, session):
            yield session
    finally:
        os.close(lock)
