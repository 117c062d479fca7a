"""Calls in the background, for asyncio: no thread for each, and any number at a time.

Each event loop has a `_Reactor`. It watches the descriptor that the library's futures make readable
when they are to be polled, and polls them in the loop's own thread.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ._errors import LimitError
from ._native import Background, Wakeups


class _Reactor:
    """The calls of one event loop that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wakeups = Wakeups()
        self._waiting: dict[int, tuple[Background, asyncio.Future[Any]]] = {}
        self._postponed: deque[asyncio.Future[None]] = deque()
        self._numbers = itertools.count()
        self._successes = 0
        # The loop has only a weak reference, so that a loop that ends takes its reactor along.
        this = weakref.ref(self)

        def run() -> None:
            reactor = this()
            if reactor is not None:
                reactor._run()

        loop.add_reader(self._wakeups.fileno(), run)

    def _run(self) -> None:
        for number in self._wakeups.take():
            call, future = self._waiting.get(number, (None, None))
            if call is None or future is None or future.done():
                continue
            try:
                result = call.poll(self._wakeups, number)
            except Exception as error:
                future.set_exception(error)
            else:
                if result is not None:
                    future.set_result(result[0])

    async def wait(self, make: Callable[[], Background], loop: asyncio.AbstractEventLoop) -> Any:
        """Makes a call that may be made again: one that finds the memory full waits for the others."""
        while True:
            before = self._successes
            try:
                return await self.once(make(), loop)
            except LimitError:
                if not self._waiting:
                    if self._successes == before:
                        raise
                    # Others had the memory when this failed, and have it no longer.
                    continue
            turn = loop.create_future()
            self._postponed.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._next()
                raise

    async def once(self, call: Background, loop: asyncio.AbstractEventLoop) -> Any:
        """Makes a call."""
        number = next(self._numbers)
        result = call.poll(self._wakeups, number)
        if result is not None:
            self._successes += 1
            return result[0]
        future = loop.create_future()
        self._waiting[number] = call, future
        try:
            value = await future
            self._successes += 1
            return value
        finally:
            # A cancelled call is dropped, and with it its request.
            del self._waiting[number]
            call.cancel()
            self._next()

    def _next(self) -> None:
        """Gives a postponed call its turn; all of them once nothing else is under way."""
        while self._postponed:
            turn = self._postponed.popleft()
            if not turn.done():
                turn.set_result(None)
                if self._waiting:
                    break


_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reactor] = weakref.WeakKeyDictionary()


def _reactor(loop: asyncio.AbstractEventLoop) -> _Reactor:
    reactor = _reactors.get(loop)
    if reactor is None:
        reactor = _reactors[loop] = _Reactor(loop)
    return reactor


async def read(make: Callable[[], Background]) -> Any:
    """Makes a call that only reads, in the running loop, and returns its result."""
    loop = asyncio.get_running_loop()
    return await _reactor(loop).wait(make, loop)


async def write(call: Background) -> Any:
    """Makes a call once, in the running loop, and returns its result."""
    loop = asyncio.get_running_loop()
    return await _reactor(loop).once(call, loop)
