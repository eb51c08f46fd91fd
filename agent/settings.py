"""What an agent is told at start."""

from dataclasses import dataclass, field
from pathlib import Path

from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.preload import PreloadSettings
from trunkline.agent.engine.base import EngineLimits
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.agent.registration import Registry
from trunkline.agent.transfer.settings import TransferSettings
from trunkline.shared.names import AGENT_PORT


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Parsed and checked by `cli.py`; nothing changes afterwards."""

    model: Path | Emulation
    """A folder of safetensors, a GGUF file, or what stands for a model."""
    served_name: str
    node: str
    host: str = "127.0.0.1"
    port: int = AGENT_PORT
    """0: any free one."""
    events_port: int = 0
    replay_port: int = 0
    kv_bytes: int = 512 << 20
    """Memory for KV pages."""
    pages: int | None = None
    """Number of KV pages; goes before `kv_bytes`."""
    host_bytes: int = 0
    """Memory for KV pages of the host tier; 0: no such tier."""
    tier_format: TierFormat = TierFormat.NATIVE
    """How pages are kept in host and disk."""
    disk: DiskSettings | None = None
    """The disk tier; None: there is none."""
    preload: PreloadSettings = field(default_factory=PreloadSettings)
    """What to bring back from the disk before it is asked for."""
    context: int | None = None
    """Tokens of prompt and output together. None: the model's, or what the pages hold if that is less."""
    threads: int | None = None
    """None: torch's choice."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    registry: Registry | None = None
    """None: routers know the node by its URL."""
    drain_s: float = 30.0
    """For running replies to end, warm prefixes to be handed on, and what only memory has to be written to the disk,
    before the node ends."""
    secret: str | None = field(default=None, repr=False)
    """Cluster secret. None: the node belongs to no cluster."""
    transfer: TransferSettings = field(default_factory=TransferSettings)
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector. None: no traces."""
