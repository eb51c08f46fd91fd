"""A holder that lends with NIXL until it is killed: says its offer as JSON."""

import sys
import time

import msgspec

from tests.agent.transfer.slabs import make
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.transfer.nixl import NixlPort

pages = int(sys.argv[1])
port = NixlPort(PageMemory(make(pages), make(pages, first=50).slots), True)
print(msgspec.json.encode(port.offer).decode(), flush=True)
time.sleep(60)
