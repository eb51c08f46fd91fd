"""What can go wrong between two nodes. None of it fails a request: what does not come is computed.

TransferError
├── PeerRefused   one of the two will not deal with the other: secret, model, page layout, version
├── PeerLost      the other node does not answer, or no longer does
├── OfferError    its pages cannot be read in the way that it offers: another page size, another machine
└── FrameError    what came is no frame of this protocol; the connection ends
"""

from trunkline.shared.errors import TrunklineError


class TransferError(TrunklineError):
    """Base of what this package raises."""


class PeerRefused(TransferError):
    """Trying again does not help."""


class PeerLost(TransferError):
    """It may be back later."""


class OfferError(TransferError):
    """What the node offers is not for us."""


class FrameError(TransferError):
    """Of another protocol, another version, or damaged."""
