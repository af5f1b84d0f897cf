"""The table writer as a broker or a supervisor starts it: its orders are the first line of standard input, and it ends
when that is closed, which the system does when its parent is gone, however that ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from anabranch.errors import AnabranchError


class ChildOrders(msgspec.Struct, frozen=True, kw_only=True):
    service_url: str
    admin_url: str
    token: str = ""
    trust_certs: str = ""
    log_level: str = "info"


_decoded = msgspec.json.Decoder(ChildOrders).decode


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    orders = _decoded(line)
    logging.basicConfig(
        level=getattr(logging, orders.log_level.upper(), logging.INFO),
        format="%(asctime)s %(levelname)s table-writer %(name)s: %(message)s",
    )
    from anabranch.table_writer.process import lower_priority

    lower_priority()
    try:
        return asyncio.run(_run(orders))
    except AnabranchError as error:
        logging.getLogger("anabranch").error("%s", error)
        return 1


async def _run(orders: ChildOrders) -> int:
    from anabranch.client.security import NOBODY, Security
    from anabranch.table_writer.process import TableWriterProcess, listing, settings_from
    from anabranch.table_writer.settings import WriterSettings
    from anabranch.tables.core.place import parse_place

    security: Any = NOBODY
    if orders.token or orders.trust_certs:
        security = Security(token=orders.token or None, tls_trust_certs_file=orders.trust_certs or None)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def watch_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(0)  # Nothing needs to be finished: what is not committed has not happened.

    threading.Thread(target=watch_parent, daemon=True).start()
    told = await asyncio.to_thread(listing, orders.admin_url, security)
    settings = WriterSettings(
        orders.service_url, parse_place(told["tablesUrl"]), admin_url=orders.admin_url, security=security
    )
    await TableWriterProcess(settings_from(told, settings), stop).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
