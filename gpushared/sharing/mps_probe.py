"""Find out by trial if the installed control daemon can serve several users at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpushared.domain.model.errors import GpushareError, SharingUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.sharing.control import MpsControl


class MultiuserProbe:
    """Start a daemon with the flag and end it again, once; without the flag if that one does not start.

    The trial is better than the version, because the flag also needs root, and a failure without the flag
    answers whether MPS works here at all. A failure is remembered for ``retry_seconds``, so that a program
    that hangs does not delay every lease.
    """

    def __init__(
        self,
        control: Callable[[tuple[GpuId, ...], bool], MpsControl],
        *,
        retry_seconds: float,
    ) -> None:
        """Take ``control``, which makes an adapter for a daemon in the probe's directory.

        The daemon is multiuser or not, as the call asks.
        """
        self._control = control
        self._retry_seconds = retry_seconds
        self._lock = asyncio.Lock()
        self._answer: bool | None = None
        self._error: GpushareError | None = None
        self._failed_at = 0.0

    @property
    def trouble(self) -> str | None:
        """Return why no daemon starts at all, by the last trial."""
        return None if self._error is None else self._error.message

    async def knows_multiuser(self, gpus: tuple[GpuId, ...]) -> bool:
        """Return True if one daemon serves all users. Errors: ``SharingUnavailable``, ``TimedOut``."""
        async with self._lock:
            if self._answer is None:
                self._raise_recent_error()
                self._answer = await self._try_both(gpus)
            return self._answer

    async def _try_both(self, gpus: tuple[GpuId, ...]) -> bool:
        try:
            answer = await self._try_multiuser(gpus)
        except GpushareError as error:
            self._error = error
            self._failed_at = asyncio.get_running_loop().time()
            raise
        self._error = None
        return answer

    async def _try_multiuser(self, gpus: tuple[GpuId, ...]) -> bool:
        try:
            await self._start_and_quit(self._control(gpus, True))
        except SharingUnavailable:
            await self._start_and_quit(self._control(gpus, False))
            return False
        return True

    async def _start_and_quit(self, control: MpsControl) -> None:
        # A daemon left behind by a killed probe would be adopted, and answer for the wrong flag.
        await control.quit()
        try:
            await control.start()
        finally:
            await control.quit()

    def _raise_recent_error(self) -> None:
        error = self._error
        if error is not None and asyncio.get_running_loop().time() - self._failed_at < self._retry_seconds:
            raise type(error)(error.message, hint=error.hint)
