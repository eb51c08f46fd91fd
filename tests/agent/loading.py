"""What a loaded model answers, and what loading a broken one says."""

import itertools
from pathlib import Path

import pytest

from tests.agent.greedy import Greedy
from trunkline.agent.engine.builtin.model import Model
from trunkline.agent.engine.builtin.weights import load_model
from trunkline.shared.errors import ConfigError


def answer(model: Model) -> list[int]:
    """Eight tokens, greedily, to a fixed prompt."""
    greedy = Greedy(model, 8)
    return greedy.finish([greedy.start(range(3, 60))], 8, itertools.repeat(4096))[0]


def error(path: Path) -> str:
    """What loading says. One line, naming the path."""
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message
