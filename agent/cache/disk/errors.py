"""The exceptions of the disk tier.

OSError
└── DiskError        the tier cannot go on: what happened, to which file
TrunklineError
└── ConfigError      (shared) a directory that cannot be used: of another model, newer, in use, too small
ValueError
└── DamagedRecord    a record that is torn, altered or of something else; counted, dropped, computed again
"""


class DiskError(OSError):
    """Reading or writing failed in a way that says more about the disk than about one page."""


class DamagedRecord(ValueError):
    """Bytes that are not the record that should be there."""
