"""Options that cannot be used are named."""

from argparse import ArgumentParser

import pytest

from trunkline.loadtest.load.options import add_options
from trunkline.loadtest.load.settings import Range, Settings
from trunkline.shared.errors import ConfigError


def parsed(*arguments: str) -> Settings:
    parser = ArgumentParser()
    add_options(parser)
    return Settings.of(parser.parse_args(arguments))


def test_without_options_it_is_the_profile() -> None:
    assert parsed() == Settings()


def test_options_are_read() -> None:
    settings = parsed("--inputs", "100", "--turns", "2:5", "--no-reuse", "--api-keys", "a,b", "--tenants", "2")
    assert settings.inputs == Range(100, 100)
    assert settings.turns == Range(2, 5)
    assert not settings.reuse
    assert settings.api_keys == ("a", "b")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--inputs", "8:4"),
        ("--inputs", "x"),
        ("--inputs", "0:5"),
        ("--outputs", "5:"),
        ("--long-share", "1.5"),
        ("--cancel-share", "-0.1"),
        ("--tenants", "0"),
        ("--rate", "-1"),
        ("--think", "nan"),
        ("--burst", "2"),
        ("--settle", "-1"),
        ("--settle", "2", "--trace", "t.jsonl"),
        ("--settle", "2", "--rate", "1", "--open-conversations", "9", "--max-open", "8"),
        ("--window", "inf"),
    ],
)
def test_a_bad_value_is_named(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=arguments[0]):
        parsed(*arguments)


def test_loops_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--rate"):
        parsed("--rate", "3", "--trace", "t.jsonl")
