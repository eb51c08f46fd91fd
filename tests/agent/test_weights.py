"""Loading a folder of safetensors, and one clear line for whatever is wrong with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.agent import reference_models
from tests.agent.loading import answer, error
from trunkline.agent.engine.builtin.weights import fingerprint, load_model
from trunkline.shared.errors import ConfigError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    reference_models.make("llama", path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_shards_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    reference_models.make("llama", sharded, shard="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert answer(load_model(sharded)) == answer(load_model(folder))


def test_dtype_is_the_callers(folder: Path) -> None:
    model = load_model(folder, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.config.page_layout(model.dtype).page_bytes == 2 * 2 * 2 * 16 * 16 * 2
    assert len(answer(model)) == 8


def test_old_names_of_rope_settings(folder: Path) -> None:
    expected = answer(load_model(folder))
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"] == 10000.0
    edit(folder, rope_parameters=..., rope_theta=10000.0, rope_scaling=None)
    assert answer(load_model(folder)) == expected
    edit(folder, rope_scaling={"type": "linear", "factor": 64.0})
    assert answer(load_model(folder)) != expected


def test_a_head_without_its_tensor_is_tied_only_if_the_config_leaves_it_open(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert "'lm_head.weight' is missing" in error(folder)
    edit(folder, tie_word_embeddings=...)
    assert load_model(folder).config.tied is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported, the built-in engine runs llama,"),
        ({"hidden_size": "64"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"hidden_size": ...}, "missing required field `hidden_size`"),
        ({"num_hidden_layers": 0}, "Expected `int` >= 1 - at `$.num_hidden_layers`"),
        ({"num_hidden_layers": 10**12}, "$.num_hidden_layers"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' is missing"),
        ({"vocab_size": 132}, "'model.embed_tokens.weight' is [131, 64], not [132, 64]"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": None},
            "not a multiple of num_attention_heads",
        ),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "'model.layers.0.self_attn.q_proj.bias' is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1.0}}, "$.factor"),
        ({"rope_parameters": {"rope_type": "llama3", "high_freq_factor": 1.0}}, "high_freq_factor 1.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
    ],
)
def test_unusable_config(folder: Path, changes: dict[str, Any], says: str) -> None:
    edit(folder, **changes)
    assert says in error(folder)


def _index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def _tensor(folder: Path, name: str, value: torch.Tensor) -> None:
    save_file(load_file(folder / "model.safetensors") | {name: value}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": '), "truncated"),
        (lambda folder: (folder / "config.json").write_text("[1, 2]"), "Expected `object`"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{}"), "not what it should be"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "not what it should be"),
        (lambda folder: (folder / "model.safetensors").unlink(), "No such file"),
        (lambda folder: _cut(folder / "model.safetensors", 1000), "not a whole safetensors file"),
        (lambda folder: _cut(folder / "model.safetensors", 100_000), "not a whole safetensors file"),
        (lambda folder: _cut(folder / "model.safetensors", 0), "not a whole safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 4096), "not a whole safetensors file"),
        (lambda folder: _index(folder, "{}"), "missing required field `weight_map`"),
        (lambda folder: _index(folder, '{"weight_map": {"a": "gone.safetensors"}}'), "gone.safetensors"),
        (lambda folder: _index(folder, '{"weight_map": {"a": "../x.safetensors"}}'), "is not a file name"),
        (
            lambda folder: _tensor(folder, "model.layers.1.mlp.up_proj.bias", torch.zeros(96)),
            "up_proj.bias' is not one",
        ),
        (lambda folder: _tensor(folder, "model.norm.weight", torch.full((64,), torch.nan)), "are not finite"),
        (lambda folder: _tensor(folder, "model.norm.weight", torch.zeros(65)), "is [65], not [64]"),
        (lambda folder: _tensor(folder, "model.norm.weight", torch.zeros(64, dtype=torch.int32)), "is torch.int32"),
    ],
)
def test_damaged_folder(folder: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(folder)
    assert says in error(folder)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in error(tmp_path / "nothing")


def test_fingerprint(folder: Path, tmp_path: Path) -> None:
    """Equal for equal models wherever they lie; another for any other weight, setting, tokenizer or order."""
    one = fingerprint(folder)
    assert one == fingerprint(Path(shutil.copytree(folder, tmp_path / "copy")))
    assert len(bytes.fromhex(one)) == 16
    others = {one, fingerprint(folder, b"tokenizer")}
    edit(folder, rms_norm_eps=1e-6)
    others.add(fingerprint(folder))
    tensors = load_file(folder / "model.safetensors")
    _tensor(folder, "model.norm.weight", tensors["model.norm.weight"] + 1e-6)
    others.add(fingerprint(folder))
    up, gate = tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.layers.1.mlp.gate_proj.weight"]
    _tensor(folder, "model.layers.1.mlp.up_proj.weight", gate)
    _tensor(folder, "model.layers.1.mlp.gate_proj.weight", up)
    others.add(fingerprint(folder))
    assert len(others) == 5


def test_fingerprint_of_a_broken_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        fingerprint(folder)
