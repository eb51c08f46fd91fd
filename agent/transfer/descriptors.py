"""Where pages lie at their holder: what the locator answers and the data backends read."""

import numpy as np
import numpy.typing as npt

DESCRIPTOR = np.dtype([("tier", "u1"), ("slot", "<u4"), ("generation", "<u4")])
"""One page, 9 bytes, packed. `tier` as in `shared.names.Tier`: DEVICE or HOST, for a disk page is lent through the host
tier. `generation`: how often that slot of that tier had been let go when the page was located. While it stays the same
the slot is not written, so content that was copied between two equal looks at it is the located page's."""

Descriptors = npt.NDArray[np.void]
"""[pages] of DESCRIPTOR, C-contiguous."""
