"""Routers that can stand in front of agents: Trunkline's, and peers' where they are installed."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trunkline.loadtest.fleet.agents import CLI
from trunkline.loadtest.fleet.service import HOST, Probe, Service, StartError, free_ports

PEERS = Path("~/.cache/trunkline-bench")
"""Default folder of the peers' virtual environments, v_sgl and v_vllm."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1,localhost"}

Start = Callable[[str, int, Sequence[str], Path], list[str]]
"""The command, from the program, the port, the agents' URLs, and a folder for files."""


@dataclass(frozen=True, slots=True)
class Front:
    """A router as it is compared: `program` is its file, or None where it is not installed."""

    name: str
    program: str | None
    wanted: str
    """What to install, and where, to have it."""
    start: Start

    def service(self, nodes: Sequence[str], model: str, folder: Path) -> Service:
        """Not started yet. Raises StartError if it is not installed."""
        if self.program is None:
            raise StartError(f"{self.name}: {self.wanted}")
        (port,) = free_ports(1)
        command = self.start(self.program, port, nodes, folder)
        return Service(self.name, command, port, folder / f"{self.name}.log", Probe(model=model), _OFFLINE)


def fronts(peers: Path) -> dict[str, Front]:
    """By name. `peers` is searched after PATH, for `bin/` of each folder in it."""
    sglang = _find("sglang-router", peers), "sglang-router 0.3.2 is neither on PATH nor below --peers"
    vllm = _find("vllm-router", peers), "vllm-router 0.1.17 is neither on PATH nor below --peers"
    nginx = _find("nginx", Path("/usr/sbin")), "nginx is not installed"
    all_of_them = (
        Front("trunkline", CLI[0], "", _trunkline),
        Front("sglang-cache-aware", *sglang, _sglang("cache_aware")),
        Front("vllm-cache-aware", *vllm, _vllm("cache_aware")),
        Front("vllm-round-robin", *vllm, _vllm("round_robin")),
        Front("nginx-round-robin", *nginx, _nginx),
    )
    return {front.name: front for front in all_of_them}


def _find(program: str, folder: Path) -> str | None:
    """On PATH, in the folder, or in a virtual environment in it."""
    places = [os.environ.get("PATH", ""), str(folder.expanduser()), *map(str, folder.expanduser().glob("*/bin"))]
    return shutil.which(program, path=os.pathsep.join(places))


def _trunkline(_: str, port: int, nodes: Sequence[str], __: Path) -> list[str]:
    named = [argument for node in nodes for argument in ("--node", node)]
    return [*CLI, "router", "--port", str(port), "--log-level", "warning", *named]


def _sglang(policy: str) -> Start:
    return lambda program, port, nodes, _: [
        *(program, "launch", "--host", HOST, "--port", str(port), "--worker-urls", *nodes, "--policy", policy),
        *("--prometheus-host", HOST, "--prometheus-port", str(free_ports(1)[0]), "--log-level", "error"),
    ]


def _vllm(policy: str) -> Start:
    return lambda program, port, nodes, _: [
        *(program, "--host", HOST, "--port", str(port), "--worker-urls", *nodes, "--policy", policy),
        *("--prometheus-host", HOST, "--prometheus-port", str(free_ports(1)[0]), "--log-level", "error"),
    ]


def _nginx(program: str, port: int, nodes: Sequence[str], folder: Path) -> list[str]:
    own = folder / "nginx"
    own.mkdir(exist_ok=True)
    servers = " ".join(f"server {node.removeprefix('http://')};" for node in nodes)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {own}/{kind};" for kind in kinds)
    (own / "nginx.conf").write_text(
        f"""worker_processes 1; pid {own}/pid; error_log {own}/error.log warn; daemon off;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_buffer_size 1m; client_max_body_size 64m; tcp_nodelay on; {temporary}
  upstream agents {{ {servers} keepalive 256; }}
  server {{
    listen {HOST}:{port} backlog=1024;
    location / {{
      proxy_pass http://agents; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
    )
    return [program, "-c", str(own / "nginx.conf"), "-p", str(own)]
