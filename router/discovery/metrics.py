"""What a listing of nodes tells Prometheus. Without one there are no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from trunkline.shared.metrics import router as catalog

if TYPE_CHECKING:
    from trunkline.router.discovery.listing import Listing


def collect(listing: Listing | None) -> Iterator[Metric]:
    if listing is None:
        yield from (metric.by(()) for metric in catalog.ENDPOINTS.metrics)
        return
    yield catalog.ENDPOINTS_CONNECTED.of(listing.connected)
    yield catalog.ENDPOINTS_LOSSES.of(listing.losses)
    yield catalog.ENDPOINTS_UNLISTED.of(len(listing.membership.unlisted))
    yield catalog.ENDPOINTS_REFUSED.of(len(listing.membership.refused))
