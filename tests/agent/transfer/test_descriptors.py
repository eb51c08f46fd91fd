"""What a descriptor is in memory: the data backends send it as it is."""

import numpy as np

from trunkline.agent.transfer.descriptors import DESCRIPTOR


def test_a_descriptor_is_nine_packed_bytes_in_little_endian_order() -> None:
    one = np.array([(1, 0x0A0B0C0D, 7)], DESCRIPTOR)
    assert one.tobytes() == bytes.fromhex("01 0d0c0b0a 07000000")
