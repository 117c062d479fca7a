"""Calls in the background, for asyncio: no thread for each, and any number at a time.

Each event loop has a `_Reactor`. It watches the descriptor that the library's futures make readable
when they are to be polled, and polls them in the loop's own thread.
"""

from __future__ import annotations

import asyncio
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
        self._begun = 0
        # Postponed calls that have their turn, and have not been made yet.
        self._given = 0
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
        """Makes a call that may be made again.

        One that finds the memory full waits for others to end, and raises only if no other call was
        under way at any time of its own. A call that succeeds makes room for two that wait: so the
        number under way doubles until the memory is full again.
        """
        while True:
            others, begun = len(self._waiting), self._begun
            try:
                value = await self.once(make(), loop)
            except LimitError:
                if not others and self._begun == begun + 1:
                    raise
            else:
                self._give_turns(2)
                return value
            turn = loop.create_future()
            self._postponed.append(turn)
            self._go_on()
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._given -= 1
                self._go_on()
                raise
            self._given -= 1

    async def once(self, call: Background, loop: asyncio.AbstractEventLoop) -> Any:
        """Makes a call."""
        number = self._begun
        self._begun += 1
        try:
            result = call.poll(self._wakeups, number)
            if result is not None:
                return result[0]
            future = loop.create_future()
            self._waiting[number] = call, future
            return await future
        finally:
            # A cancelled call is dropped, and with it its request.
            self._waiting.pop(number, None)
            call.cancel()
            self._go_on()

    def _go_on(self) -> None:
        """Gives a postponed call its turn if nothing else is under way."""
        if not self._waiting and not self._given:
            self._give_turns(1)

    def _give_turns(self, count: int) -> None:
        """Gives up to `count` of the postponed calls their turn."""
        while self._postponed and count:
            turn = self._postponed.popleft()
            if not turn.done():
                turn.set_result(None)
                self._given += 1
                count -= 1


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
