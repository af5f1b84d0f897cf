"""What threads hand to a loop: receipts, the outbox, and what goes back after an interrupt."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from anabranch.client.threads.handover import HandedOver, Outbox, Receipt

WITHIN_S = 20.0

Look = Callable[[Receipt[int]], object]

LOOKS: list[Look] = [
    Receipt.done,
    Receipt.running,
    Receipt.cancel,
    repr,
    lambda receipt: concurrent.futures.wait([receipt], timeout=0),
    lambda receipt: receipt.add_done_callback(lambda _: None),
]

# -- receipts


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("is_settled_first", [True, False])
def test_a_receipt_is_a_future_whenever_it_is_looked_at(look: Look, is_settled_first: bool) -> None:
    receipt: Receipt[int] = Receipt()
    if is_settled_first:
        receipt.set_result(7)
    look(receipt)
    if not is_settled_first:
        assert (receipt.done(), receipt.running()) == (False, True)
        receipt.set_result(7)
    assert (receipt.done(), receipt.running(), receipt.cancelled()) == (True, False, False)
    assert (receipt.result(), receipt.exception()) == (7, None)
    assert list(concurrent.futures.as_completed([receipt])) == [receipt]


@pytest.mark.parametrize("is_looked_at", [True, False])
def test_a_receipt_raises_its_error(is_looked_at: bool) -> None:
    receipt: Receipt[int] = Receipt()
    if is_looked_at:
        receipt.running()
    receipt.set_exception(KeyError("x"))
    assert isinstance(receipt.exception(), KeyError)
    for _ in range(2):
        with pytest.raises(KeyError):
            receipt.result()


def test_what_was_posted_cannot_be_cancelled_and_a_wait_for_it_can_time_out() -> None:
    receipt: Receipt[int] = Receipt()
    assert not receipt.cancel()
    with pytest.raises(TimeoutError):
        receipt.result(0)
    with pytest.raises(TimeoutError):
        receipt.exception(0)


def test_callbacks_are_called_once_wherever_they_are_added() -> None:
    called: list[int] = []
    before: Receipt[int] = Receipt()
    before.add_done_callback(lambda done: called.append(done.result()))
    before.set_result(1)
    after: Receipt[int] = Receipt()
    after.set_result(2)
    after.add_done_callback(lambda done: called.append(done.result()))
    assert called == [1, 2]


def test_threads_that_look_while_receipts_are_settled_all_see_the_result() -> None:
    receipts: list[Receipt[int]] = [Receipt() for _ in range(2000)]
    start = threading.Barrier(4)

    def look() -> list[int]:
        start.wait()
        return [receipt.result(WITHIN_S) for receipt in receipts]

    def settle() -> None:
        start.wait()
        for number, receipt in enumerate(receipts):
            receipt.set_result(number)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        looking = [threads.submit(look) for _ in range(3)]
        threads.submit(settle).result(WITHIN_S)
        assert [one.result(WITHIN_S) for one in looking] == [list(range(2000))] * 3


# -- the outbox


class Loop:
    """A loop in a thread, and an outbox that hands numbers in while its gate is open."""

    def __init__(self, size_max: int = 1000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.handed_in: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.outbox: Outbox[int] = Outbox(
            self._loop, self._hand_in, size_max, lambda item, error: self.failed.append((item, str(error)))
        )

    async def _hand_in(self, batch: deque[int]) -> None:
        while batch:
            await self.gate.wait()
            if batch[0] < 0:
                raise ValueError("negative")
            self.handed_in.append(batch.popleft())

    def run(self, work: Callable[[], object]) -> None:
        """Something in the loop's thread."""

        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(WITHIN_S)

    def passing(self) -> concurrent.futures.Future[None]:
        return asyncio.run_coroutine_threadsafe(self.outbox.passed(), self._loop)

    def end(self) -> None:
        async def cancel() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(WITHIN_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self.outbox.end(ValueError("ended"))
            self._loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    one = Loop(size_max=10)
    yield one
    one.end()


def test_what_every_thread_puts_arrives_once_and_in_its_order(loop: Loop) -> None:
    def put(thread: int) -> None:
        for number in range(1000):
            loop.outbox.put(thread * 1000 + number, 1)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(put, range(4)))
    loop.passing().result(WITHIN_S)
    assert sorted(loop.handed_in) == list(range(4000))
    for thread in range(4):
        assert [one for one in loop.handed_in if one // 1000 == thread] == sorted(
            one for one in loop.handed_in if one // 1000 == thread
        )
    assert loop.outbox.is_idle
    assert loop.outbox.size == 0


def test_a_thread_that_is_far_ahead_waits_and_the_loops_own_does_not(loop: Loop) -> None:
    loop.run(loop.gate.clear)
    for number in range(10):
        loop.outbox.put(number, 1)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(loop.outbox.put, 11, 1)
        loop.run(lambda: loop.outbox.put(10, 1))
        assert not waiting.done()
        loop.run(loop.gate.set)
        waiting.result(WITHIN_S)
    loop.passing().result(WITHIN_S)
    assert loop.handed_in == list(range(12))


def test_passing_waits_for_what_was_put_before(loop: Loop) -> None:
    loop.run(loop.gate.clear)
    loop.outbox.put(1, 1)
    passing = loop.passing()
    loop.run(lambda: None)
    assert not passing.done()
    assert not loop.outbox.is_idle
    loop.run(loop.gate.set)
    passing.result(WITHIN_S)
    loop.passing().result(WITHIN_S)


def test_the_end_fails_what_is_left_and_whoever_waits(loop: Loop) -> None:
    loop.run(loop.gate.clear)
    for number in range(10):
        loop.outbox.put(number, 1)
    loop.run(lambda: None)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(loop.outbox.put, 10, 1)
        loop.end()
        with pytest.raises(ValueError, match="ended"):
            waiting.result(WITHIN_S)
    assert loop.failed == [(number, "ended") for number in range(10)]
    with pytest.raises(ValueError, match="ended"):
        loop.outbox.put(11, 1)


def test_a_fault_in_handing_in_fails_the_rest_of_its_batch_and_no_more(loop: Loop) -> None:
    loop.run(loop.gate.clear)
    loop.outbox.put(0, 1)
    loop.run(lambda: None)
    loop.outbox.put(-1, 1)
    loop.outbox.put(1, 1)
    loop.run(loop.gate.set)
    loop.passing().result(WITHIN_S)
    loop.outbox.put(2, 1)
    loop.passing().result(WITHIN_S)
    assert loop.handed_in == [0, 2]
    assert loop.failed == [(-1, "negative"), (1, "negative")]


# -- what is taken for a thread that is interrupted


async def test_what_is_taken_for_a_thread_that_has_gone_is_put_back() -> None:
    back: list[int] = []
    here: asyncio.Queue[int] = asyncio.Queue()
    taken = HandedOver(back.append)
    taking = asyncio.create_task(taken.fetch(here.get))
    await asyncio.sleep(0)
    taken.give_up(asyncio.get_running_loop())
    here.put_nowait(1)
    await taking
    assert back == [1]


async def test_what_was_taken_just_before_its_thread_went_is_put_back() -> None:
    back: list[int] = []
    here: asyncio.Queue[int] = asyncio.Queue()
    here.put_nowait(1)
    taken = HandedOver(back.append)
    await taken.fetch(here.get)
    taken.give_up(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert back == [1]
