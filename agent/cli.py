"""`trunkline agent`."""

import re
import socket
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from trunkline.agent import models as registry
from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.preload import PreloadSettings
from trunkline.agent.engine.base import EngineLimits
from trunkline.agent.engine.builtin.threads import spin_briefly
from trunkline.agent.engine.emulated.profile import ENGINES, find_profile
from trunkline.agent.engine.emulated.settings import PAGE_BYTES, PROFILE, Emulation
from trunkline.agent.listen import listen
from trunkline.agent.models_cli import pull_with_progress
from trunkline.agent.registration import Registry
from trunkline.agent.settings import AgentSettings
from trunkline.agent.sizes import parse_bytes
from trunkline.agent.transfer.settings import TlsFiles, TransferSettings
from trunkline.shared.errors import ConfigError
from trunkline.shared.flags_file import load_flags
from trunkline.shared.logs import LEVELS, LogFormat, start_logging
from trunkline.shared.names import AGENT_PORT, PAGE_TOKENS, EngineKind
from trunkline.shared.registry import PASSWORD_VARIABLE, registry_address
from trunkline.shared.secret import VARIABLE, load_secret
from trunkline.shared.tracing import ENDPOINT_VARIABLE

_DEFAULT_MODEL = registry.DEFAULT
_KV_MEMORY = "512MiB"
_DEFAULTS = EngineLimits()
_URL = re.compile(r"https?://[^/?#@\s]+/?")


def agent(
    config: Annotated[
        Path | None,
        typer.Option(is_eager=True, callback=load_flags, help="TOML file of the other flags, without dashes in front."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Name of a model, folder of safetensors, or GGUF file. [default: {_DEFAULT_MODEL}]"),
    ] = None,
    engine: Annotated[
        EngineKind, typer.Option(help="emulated: everything is real but the time that computing takes, and its text.")
    ] = EngineKind.BUILTIN,
    profile: Annotated[
        str | None, typer.Option(help=f"Of an emulated engine: a name, or a .json file. [default: {PROFILE}]")
    ] = None,
    page_bytes: Annotated[
        str | None, typer.Option(help=f"Size of an emulated engine's pages. [default: {PAGE_BYTES}]")
    ] = None,
    time_scale: Annotated[
        float | None, typer.Option(min=0.001, max=1000.0, help="Of an emulated engine's durations. [default: 1]")
    ] = None,
    served_name: Annotated[str, typer.Option(help="Name that requests ask for. [default: the model's]")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = AGENT_PORT,
    name: Annotated[str, typer.Option(help="Name of this node. [default: host name and port]")] = "",
    kv_memory: Annotated[
        str | None, typer.Option(help=f"Memory for the KV cache. [default: {_KV_MEMORY}, or what the profile has]")
    ] = None,
    pages: Annotated[int, typer.Option(min=0, help="KV pages, instead of --kv-memory. 0: as that says.")] = 0,
    host_memory: Annotated[str, typer.Option(help="Memory for KV pages that --kv-memory has no room for.")] = "0",
    tier_format: Annotated[
        TierFormat, typer.Option(help="Pages in host memory and on disk: as they are, or 8 bits a number.")
    ] = TierFormat.NATIVE,
    disk_cache: Annotated[
        Path | None,
        typer.Option(help="Directory for KV pages beyond --host-memory; lasts over restarts."),
    ] = None,
    disk_size: Annotated[str, typer.Option(help="Room that --disk-cache takes.")] = "4GiB",
    disk_write_rate: Annotated[str, typer.Option(help="Bytes per second written to it, at most.")] = "512MiB",
    disk_ttl: Annotated[
        float, typer.Option(min=0, help="Seconds after their last use that pages stay there. 0: as long as they fit.")
    ] = 0.0,
    preload_rhythm: Annotated[
        bool, typer.Option("--preload-rhythm", help="Bring sessions back from the disk when they usually come.")
    ] = False,
    preload_graph: Annotated[
        bool, typer.Option("--preload-graph", help="Bring a session back from the disk when the one before it comes.")
    ] = False,
    context: Annotated[int, typer.Option(min=0, help="Tokens of prompt and output. 0: the model's.")] = 0,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Compute threads. 0: one per core.")] = 0,
    max_running: Annotated[
        int | None,
        typer.Option(min=1, help=f"Batch size. [default: {_DEFAULTS.max_running}, or as profiled]"),
    ] = None,
    max_waiting: Annotated[int, typer.Option(min=1, help="Sequences in the queue.")] = _DEFAULTS.max_waiting,
    step_tokens: Annotated[
        int | None, typer.Option(min=2, help=f"Tokens per step. [default: {_DEFAULTS.step_tokens}, or as profiled]")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=0.0, max=1000.0, help="A prompt lets shorter ones pass. 0: first come, first served.")
    ] = _DEFAULTS.patience,
    events_port: Annotated[int, typer.Option(min=0, max=65535, help="Event stream. 0: any free port.")] = 0,
    replay_port: Annotated[int, typer.Option(min=0, max=65535, help="Replays and snapshots. 0: any.")] = 0,
    transfer_host: Annotated[str, typer.Option(help="Address where other nodes ask for pages.")] = "127.0.0.1",
    transfer_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    transfer_rate: Annotated[
        str | None, typer.Option(help="Bytes per second lent to other nodes, at most. [default: as fast as it goes]")
    ] = None,
    transfer_nixl: Annotated[
        bool, typer.Option("--transfer-nixl", help="Lend and read pages with NIXL too (RDMA): needs trunkline[nixl].")
    ] = False,
    transfer_tls: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(help="CERTIFICATE KEY AUTHORITY, PEM files: nodes show certificates to each other, and encrypt."),
    ] = None,
    transfer_open: Annotated[
        bool, typer.Option("--transfer-open", help="Lend pages to whoever reaches --transfer-host.")
    ] = False,
    transfer_plain: Annotated[
        bool, typer.Option("--transfer-plain", help="Pages pass --transfer-host's network unencrypted.")
    ] = False,
    registry: Annotated[
        str | None,
        typer.Option(help="Redis where routers find this node: redis://host:port/db, rediss://, redis+sentinel://"),
    ] = None,
    registry_password_file: Annotated[
        Path | None, typer.Option(help=f"Password of the registry; else ${PASSWORD_VARIABLE}.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="URL at which routers reach this node. [default: --host and --port]")
    ] = None,
    cluster_secret_file: Annotated[
        Path | None, typer.Option(help=f"Secret that routers prove to know. Also in ${VARIABLE}.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds after SIGTERM for replies to end and warm pages to go.")
    ] = 30.0,
    log_level: Annotated[str, typer.Option(help=" | ".join(LEVELS))] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="Of the lines on stderr.")] = LogFormat.TEXT,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(envvar=ENDPOINT_VARIABLE, help="OpenTelemetry collector for traces: http://host:4318"),
    ] = None,
) -> None:
    """Serve a model on this machine. Routers can follow its prefix cache."""
    start_logging(log_level, log_format)
    emulation = _emulation(engine, model, profile, page_bytes, time_scale)
    usual = emulation.profile if emulation else _DEFAULTS
    limits = EngineLimits(
        max_running=max_running or usual.max_running,
        max_waiting=max_waiting,
        step_tokens=step_tokens or usual.step_tokens,
        patience=patience,
    )
    if limits.step_tokens <= limits.max_running:
        raise ConfigError(
            f"--step-tokens: {limits.step_tokens} leaves no room for prefill beside {limits.max_running} sequences"
        )
    if emulation is not None and kv_memory is None:
        pages = pages or emulation.profile.cache_tokens // PAGE_TOKENS
    model = model or _DEFAULT_MODEL
    if advertise is not None and registry is None:
        raise ConfigError(f"--advertise {advertise} needs a --registry to be told to")
    address = registry_address(registry, registry_password_file) if registry is not None else None
    settings = AgentSettings(
        model=emulation or _resolve(model),
        served_name=served_name or (emulation.name if emulation else _name_of(model)),
        node=name or f"{socket.gethostname()}:{port}",
        host=host,
        port=port,
        events_port=events_port,
        replay_port=replay_port,
        kv_bytes=parse_bytes(kv_memory or _KV_MEMORY, "--kv-memory"),
        pages=pages or None,
        disk=_disk(disk_cache, disk_size, disk_write_rate, disk_ttl),
        host_bytes=0 if host_memory == "0" else parse_bytes(host_memory, "--host-memory"),
        tier_format=tier_format,
        preload=PreloadSettings(preload_rhythm, preload_graph),
        context=context or None,
        threads=threads or None,
        limits=limits,
        drain_s=drain_timeout,
        secret=load_secret(cluster_secret_file),
        otlp_endpoint=otlp_endpoint or None,
        transfer=TransferSettings(
            transfer_host,
            transfer_port,
            TlsFiles(*transfer_tls) if transfer_tls else None,
            transfer_plain,
            parse_bytes(transfer_rate, "--transfer-rate") if transfer_rate else 0,
            transfer_nixl,
        ),
    )
    settings.transfer.check(settings.secret, anybody=transfer_open)
    with listen(host, port) as listener:
        spin_briefly()
        if address is not None:
            settings = replace(settings, registry=Registry(address, _advertised(advertise, listener)))
        # Imported here: torch takes seconds, and what can go wrong before should show at once.
        from trunkline.agent.server import serve

        serve(settings, listener)


def _emulation(
    engine: EngineKind, model: str | None, profile: str | None, page_bytes: str | None, time_scale: float | None
) -> Emulation | None:
    """None: a real model. Raises ConfigError also for flags of the other engine."""
    if engine is EngineKind.BUILTIN:
        for flag, value in (("--profile", profile), ("--page-bytes", page_bytes), ("--time-scale", time_scale)):
            if value is not None:
                raise ConfigError(f"{flag} {value} is for --engine {EngineKind.EMULATED}")
        return None
    if model is not None:
        raise ConfigError(f"--model {model} is not for --engine {engine}, which has none: see --profile")
    return Emulation(
        find_profile(profile or PROFILE, ENGINES),
        PAGE_BYTES if page_bytes is None else parse_bytes(page_bytes, "--page-bytes"),
        time_scale or 1.0,
    )


def _disk(folder: Path | None, size: str, write_rate: str, ttl_s: float) -> DiskSettings | None:
    if folder is None:
        return None
    rate = parse_bytes(write_rate, "--disk-write-rate")
    return DiskSettings(folder, parse_bytes(size, "--disk-size"), float(rate), ttl_s or None)


def _advertised(url: str | None, listener: socket.socket) -> str:
    """What the registry tells routers. Raises ConfigError for an address that nobody else can reach."""
    if url is not None:
        if not _URL.fullmatch(url):
            raise ConfigError(f"--advertise {url!r} is not of the form http://host:port")
        return url.rstrip("/")
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        raise ConfigError(f"--host {host} says not where routers reach this node: give --advertise http://HOST:{port}")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(model: str) -> Path:
    """A named model that is not here yet is downloaded."""
    if model in registry.MODELS and not registry.is_pulled(registry.named(model)):
        pull_with_progress(model)
    return registry.resolve(model)


def _name_of(model: str) -> str:
    return model if model in registry.MODELS else Path(model).resolve().name.removesuffix(".gguf")
