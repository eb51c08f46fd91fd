"""`python -m trunkline.loadtest.compare`, also `make bench-compare`."""

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trunkline.agent.engine.emulated.profile import find_profile
from trunkline.loadtest.compare import plot, table
from trunkline.loadtest.compare.bound import begin_s, best_speedup
from trunkline.loadtest.compare.contest import Contest
from trunkline.loadtest.compare.plan import OURS, OWN, Plan
from trunkline.loadtest.fleet.command import new_folder, run, write_json
from trunkline.loadtest.fleet.fronts import PEERS, Front, fronts
from trunkline.shared.errors import ConfigError, TrunklineError

_PLAN = Plan()


def compare(
    agents: Annotated[int, typer.Option(min=1, max=64, help="Emulated agents.")] = _PLAN.agents,
    profile: Annotated[str, typer.Option(help="Of the agents: a name or a .json file.")] = _PLAN.profile,
    time_scale: Annotated[float, typer.Option(min=0.001, max=1000.0, help="Of the agents.")] = _PLAN.time_scale,
    users: Annotated[int, typer.Option(min=1, help="In the closed loop.")] = _PLAN.users,
    rounds: Annotated[int, typer.Option(min=1, help="Of the open loop; medians are shown.")] = _PLAN.rounds,
    seconds: Annotated[float, typer.Option(min=2.0, help="Of each run, beside its warm-up.")] = _PLAN.seconds,
    warm_up: Annotated[
        float, typer.Option(min=0.0, help="Seconds of each run before that, at most: until each user has an answer.")
    ] = _PLAN.warm_up,
    only: Annotated[str, typer.Option(help="Routers to compare, separated by commas. Default: all.")] = "",
    traffic: Annotated[
        str, typer.Option(help="More options of the locust profile; '' for the profile as it is.")
    ] = "--turns 8:24 --tool-share 0.3",
    seed: Annotated[int, typer.Option(min=0)] = _PLAN.seed,
    peers: Annotated[Path, typer.Option(help="Folder of the peers' programs or virtual environments.")] = PEERS,
    out: Annotated[Path, typer.Option(help="Folder for picture, JSON and logs; made anew.")] = Path("bench-compare"),
) -> None:
    """Trunkline and its peers in front of the same emulated agents, in turn: table, picture, JSON.

    Raises TrunklineError, once all of that is there, if Trunkline is among those that failed.
    """
    plan = Plan(agents, profile, time_scale, users, rounds, seconds, warm_up, seed=seed, traffic=_options(traffic))
    model = find_profile(profile)
    bound = best_speedup(plan.traffic, model)
    begins = begin_s(plan.traffic, model.scaled(time_scale), users, agents)
    plot.check()
    found = _chosen(fronts(peers), only)
    folder = new_folder(out)
    there = {front.name for front in found.values() if front.program is not None}
    missing = sum(target.front not in there for target in plan.open_targets)
    console = Console(width=180) if not sys.stdout.isatty() else Console()
    console.print(
        f"takes about {plan.estimate_s(missing, begins) / 60:.0f} minutes; files go to {folder}", highlight=False
    )
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[{time.monotonic() - began:4.0f} s] {line}", highlight=False, markup=False)

    results = Contest(plan, found, folder, say).run()
    for each in table.tables(results):
        console.print(each)
    for line in table.findings(results, bound):
        console.print(line, highlight=False, markup=False)
    plot.draw(folder / "compare.png", results)
    whole = {"plan": asdict(plan), "best_speedup": bound, **table.json_of(results)}
    write_json(folder / "compare.json", whole)
    console.print(f"{folder}/compare.json, compare.png; {time.monotonic() - began:.0f} s", highlight=False)
    if OURS in results.missing:
        raise TrunklineError(f"{OURS.name} failed: {results.missing[OURS]}")


def _chosen(found: dict[str, Front], only: str) -> dict[str, Front]:
    """Raises ConfigError for a name that no router has. Trunkline is always among them."""
    names = [name.strip() for name in only.split(",") if name.strip()] or list(found)
    for name in names:
        if name not in found:
            raise ConfigError(f"--only: {name!r} is none of {', '.join(found)}")
    return {name: front for name, front in found.items() if name in names or name == OURS.front}


def _options(text: str) -> dict[str, object]:
    """`--name value` pairs, and flags. Locust judges them. Raises ConfigError for what is neither, and for those that
    are not to be had."""
    options: dict[str, object] = {}
    name = ""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--traffic: {text!r}: {error}") from None
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            if name.partition("=")[0] in OWN:
                raise ConfigError(f"--traffic: {word} is the comparison's own to set")
            options[name] = True
        elif name:
            options[name], name = word, ""
        else:
            raise ConfigError(f"--traffic: {word!r} belongs to no option")
    return options


if __name__ == "__main__":
    run("compare", compare)
