"""The work of a traffic: with a cache that forgets nothing and without any, and until all of it has begun."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import NoReturn

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.loadtest.load.conversation import Mix
from trunkline.loadtest.load.options import add_options
from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.text import Writer
from trunkline.shared.errors import ConfigError

_CONVERSATIONS = 300


def best_speedup(traffic: Mapping[str, object], profile: Profile) -> float:
    """Work without reuse, over that with one cache for all. Prefill and decode, without the fixed part of steps.

    `traffic` are options of the locust profile. Raises ConfigError for one that there is not, or has no valid value.
    """
    mix = Mix(_settings(traffic), Writer(1.0))
    with_all = without = 0.0
    systems: set[str] = set()
    for number in range(_CONVERSATIONS):
        conversation = mix.conversation(number)
        system = conversation.messages[0]["content"]
        length = len(system.split())
        had = length if system in systems else 0
        systems.add(system)
        for message, answer in conversation.turns:
            length += message
            decode = profile.decode_s(length, answer)
            without += profile.prefill_s(0, length) + decode
            with_all += profile.prefill_s(min(had, length - 1), length) + decode
            length += answer
            had = length
    return without / with_all


def begin_s(traffic: Mapping[str, object], profile: Profile, users: int, agents: int) -> float:
    """How long so many agents compute if so many users, whose conversations are in their midst, all ask at once.

    Agents that share the work evenly, which none does. Raises ConfigError as `best_speedup`.
    """
    settings = _settings({**traffic, "aged": users})
    mix = Mix(settings, Writer(1.0))
    work = 0.0
    for number in range(users):
        messages = mix.conversation(number).next().messages
        length = sum(len(message["content"].split()) for message in messages)
        work += profile.prefill_s(0, length)
    return work / agents


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _settings(traffic: Mapping[str, object]) -> Settings:
    parser = _Parser(allow_abbrev=False)
    add_options(parser)
    words = [word for name, value in traffic.items() for word in _words(name, value)]
    return Settings.of(parser.parse_args(words))


def _words(name: str, value: object) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]
