"""The default model, for tests that need a real one."""

from pathlib import Path

import pytest

from trunkline.agent import models
from trunkline.agent.engine.builtin.tokenizer import TextModel, load_tokenizer


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file; downloaded the first time."""
    return models.ensure(models.DEFAULT)


@pytest.fixture(scope="session")
def text_model(model_path: Path) -> TextModel:
    """Its tokenizer and chat template."""
    return load_tokenizer(model_path)
