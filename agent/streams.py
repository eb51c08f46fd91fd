"""Several generations read as one, in the order in which their deltas come."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from trunkline.agent.engine.base import Delta, GenerationStream


async def merged(streams: Sequence[GenerationStream]) -> AsyncIterator[tuple[int, Delta]]:
    """(index of the stream, delta). The first error of any ends it; the caller cancels the streams."""
    iterators = [aiter(stream) for stream in streams]
    pending = {asyncio.ensure_future(anext(iterator)): index for index, iterator in enumerate(iterators)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=pending.__getitem__):
                index = pending.pop(future)
                delta = future.result()
                if delta.finish is None:
                    pending[asyncio.ensure_future(anext(iterators[index]))] = index
                yield index, delta
    finally:
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
