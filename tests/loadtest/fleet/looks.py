"""Counters and looks as a watch collects them, made by hand."""

from pathlib import Path

from trunkline.loadtest.fleet.agents import Counters
from trunkline.loadtest.fleet.service import Probe, Service, Usage
from trunkline.loadtest.fleet.watch import Look, Watch


def counted(
    prompt: int = 0, cached: int = 0, output: int = 0, *, resident: int = 0, idle: int = 0, **others: float
) -> Counters:
    """Of an agent with 100 device pages."""
    names = {"prompt_tokens_total": prompt, "cached_tokens_total": cached, "output_tokens_total": output, "running": 0}
    lines = [f"trunkline_agent_{name} {value}" for name, value in {**names, **others}.items()]
    pages = {"free": 100 - resident, "resident": resident, "in_flight": 0, "cached": idle, "leased": 0, "total": 100}
    lines += [f'trunkline_agent_pages{{tier="device",state="{state}"}} {count}' for state, count in pages.items()]
    return Counters("\n".join(lines) + "\n")


def watched(*looks: tuple[float, tuple[Counters | None, ...], Usage | None]) -> Watch:
    services = [_service(f"agent-{number}") for number in range(len(looks[0][1]))]
    return Watch(services, _service("router"), [Look(*look) for look in looks])


def _service(name: str) -> Service:
    return Service(name, ["true"], 1, Path("log"), Probe(), {})
