"""The default model, for tests that need a real one."""

from pathlib import Path

import pytest
import torch

from trunkline.agent import models
from trunkline.agent.engine.builtin.model import Model
from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.builtin.weights import load_model
from trunkline.agent.engine.text import TextModel


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run in parallel: torch's threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file; downloaded the first time."""
    return models.ensure(models.DEFAULT)


@pytest.fixture(scope="session")
def text_model(model_path: Path) -> TextModel:
    """Its tokenizer and chat template."""
    return load_tokenizer(model_path)


@pytest.fixture(scope="session")
def default_model(model_path: Path) -> Model:
    """Its weights, half a GB that nobody changes."""
    return load_model(model_path)
