"""What routers would be told, and of what."""

from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("bench", "float32", "layout")


class Known:
    """A sink that keeps which keys are in some tier."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        self.keys.update(memoryview(keys).cast("Q"))

    def moved(self, keys: bytes, tier: Tier) -> None: ...

    def removed(self, keys: bytes) -> None:
        self.keys.difference_update(memoryview(keys).cast("Q"))

    def cleared(self) -> None:
        self.keys.clear()
