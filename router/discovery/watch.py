"""Keeps the router's nodes as the EndpointSlices of a Service list them.

    list ── watch: slices added, modified, deleted ── watch again from the last version
      ▲  error, or a version that is too old: after a pause
      └────────────────────────────────────────────┘

While the API does not answer, nodes stay as they are: their probes go on.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain

from trunkline.router.discovery.listing import Listing
from trunkline.router.discovery.service import ServiceAddress
from trunkline.router.discovery.slices import ApiError, Expired, SliceApi, connected
from trunkline.router.nodes import Registry
from trunkline.router.timing import jittered
from trunkline.shared.lease import Member

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_STEADY_S = 10.0
"""What has worked for so long is tried again at once."""
_SHORT_S = 1.0
"""A watch that ends sooner is not begun again at once."""

log = logging.getLogger(__name__)


class EndpointWatch(Listing):
    def __init__(
        self,
        address: ServiceAddress,
        registry: Registry,
        secret: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(address, registry, secret)
        self._service = address
        self._secret = secret
        self._clock = clock
        self._slices: dict[str, list[Member]] = {}
        """By name."""

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            began = self._clock()
            try:
                async with connected(self._service) as api:
                    await self._watch(api)
            except Expired:
                log.info("%s: listed again, the watch was too far behind", self.address)
            except ApiError as error:
                self._lost(str(error))
            except Exception:
                log.exception("%s: this is a defect, please report it", self.address)
                self._lost("a defect, see the log")
            pause = _FIRST_PAUSE_S if self._clock() - began > _STEADY_S else min(pause * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(jittered(pause))

    async def _watch(self, api: SliceApi) -> None:
        slices, version = await api.list()
        self._slices = {one.metadata.name: one.members(self._secret) for one in slices}
        self._list(list(chain(*self._slices.values())))
        while True:
            began = self._clock()
            async for change in api.watch(version):
                version = change.version
                if change.slice is None:
                    continue
                if change.deleted:
                    self._slices.pop(change.slice.metadata.name, None)
                else:
                    self._slices[change.slice.metadata.name] = change.slice.members(self._secret)
                self._list(list(chain(*self._slices.values())))
            if self._clock() - began < _SHORT_S:  # What is between here and the API may end every watch at once.
                await asyncio.sleep(jittered(_SHORT_S))
