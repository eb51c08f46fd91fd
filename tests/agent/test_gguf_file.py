"""Loading a GGUF file, and one clear line for whatever is wrong with it."""

import itertools
import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.agent import reference_models
from tests.agent.loading import answer, error
from trunkline.agent.engine.builtin.weights import fingerprint, load_model, read_gguf
from trunkline.shared.errors import ConfigError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    reference_models.make("llama", path)
    return path


def write_gguf(
    path: Path, folder: Path, family: str, quantize: gguf.GGMLQuantizationType, divisors: list[float] | None = None
) -> None:
    """`folder` as llama.cpp's converter would write it."""
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_array("test.strings", ["a", "", "ü"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_float64("test.float", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_int64("test.int", -(2**40))
    if config["rope_parameters"]["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_parameters"]["factor"])
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            count = heads if ".q_proj." in name else kv_heads
            tensor = tensor.view(count, 2, tensor.shape[0] // count // 2, -1).transpose(1, 2).reshape(tensor.shape)
        data = tensor.contiguous().numpy()
        kind = quantize if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(str(target), gguf.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("family", "arch"),
    [
        ("llama", "llama"),
        ("llama tied", "llama"),
        ("llama biased", "llama"),
        ("linear rope", "llama"),
        ("llama3 rope", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ],
)
def test_gguf_is_the_same_model(family: str, arch: str, tmp_path: Path) -> None:
    reference_models.make(family, tmp_path / "folder")
    plain = load_model(tmp_path / "folder")
    divisors = list(plain.config.rope.divisors) if family == "llama3 rope" else None
    write_gguf(tmp_path / "model.gguf", tmp_path / "folder", arch, gguf.GGMLQuantizationType.F32, divisors)
    assert answer(load_model(tmp_path / "model.gguf")) == answer(plain)


@pytest.mark.parametrize(
    "kind", [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0]
)
def test_quantized_gguf(kind: gguf.GGMLQuantizationType, saved: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", saved, "llama", kind)
    file = read_gguf(tmp_path / "model.gguf")
    tensor = file.tensors["blk.0.ffn_up.weight"]
    exact = load_file(saved / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    assert tensor.kind == kind
    torch.testing.assert_close(torch.from_numpy(tensor.dequantize()), exact, rtol=0.01, atol=0.01)
    assert len(answer(load_model(tmp_path / "model.gguf"))) == 8


@pytest.fixture(scope="module")
def small_gguf(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, saved, "llama", gguf.GGMLQuantizationType.Q8_0)
    return path


def test_read_gguf_agrees_with_the_gguf_package(small_gguf: Path) -> None:
    ours, theirs = read_gguf(small_gguf), gguf.GGUFReader(small_gguf)
    assert ours.metadata == {k: field.contents() for k, field in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata["test.strings"] == ["a", "", "ü"]
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.kind == tensor.tensor_type
        assert list(mine.shape) == tensor.shape.tolist()[::-1]
        assert np.array_equal(mine.dequantize(), gguf.dequantize(tensor.data, tensor.tensor_type))


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _header(tensors: int, entries: int, rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot mmap an empty file"),
        (b"GG", "ends at byte 2"),
        (b"PK\x03\x04" * 100, "does not start with 'GGUF'"),
        (_header(0, 0, b"", version=1), "version 1 is not supported"),
        (_header(0, 1, b""), "ends at byte 24"),
        (_header(0, 1, struct.pack("<Q", 2**63)), "were expected"),  # a string of 8 EiB
        (_header(0, 2**63, _string("a") + struct.pack("<IB", 0, 1)), "ends at byte"),
        (_header(0, 1, _string("a") + struct.pack("<IIQ", 9, 0, 2**62)), "were expected"),  # an array of 4 E numbers
        (_header(0, 1, _string("a") + struct.pack("<IIQ", 9, 8, 2**62)), "ends at byte"),  # of strings
        (_header(0, 1, _string("a") + struct.pack("<IIQ", 9, 9, 1)), "arrays of metadata type 9"),
        (_header(0, 1, _string("a") + struct.pack("<I", 99)), "metadata type 99"),
        (_header(0, 1, struct.pack("<Q", 2) + b"\xff\xff" + struct.pack("<IB", 0, 1)), "utf-8"),
        (_header(0, 1, _string("general.alignment") + struct.pack("<II", 4, 0)), "alignment 0 is not a power of two"),
        (_header(0, 1, _string("general.alignment") + struct.pack("<II", 4, 24)), "alignment 24"),
        (_header(1, 0, _string("t") + struct.pack("<I", 2**31)), "2147483648 dimensions"),
        (_header(1, 0, _string("t") + struct.pack("<IQIQ", 1, 8, 777, 0)), "unknown type 777"),
        (_header(1, 0, _string("t") + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0)), "tensor 't' at"),
        (_header(1, 0, _string("t") + struct.pack("<IQIQ", 1, 4, 0, 2**63)), "tensor 't' at"),
        (_header(1, 0, _string("t") + struct.pack("<IQIQ", 1, 33, 8, 0)), "rows of 33"),
        (_header(1, 0, _string("t") + struct.pack("<IQQIQ", 2, 32, 0, 8, 0)), "tensor 't' is empty"),
        (_header(0, 0, b""), "architecture None is not supported"),
        (
            _header(0, 1, _string("general.architecture") + struct.pack("<I", 8) + _string("bert")),
            "'bert' is not supported",
        ),
        (
            _header(0, 1, _string("general.architecture") + struct.pack("<I", 8) + _string("llama")),
            "missing required field",
        ),
    ],
    ids=itertools.count(),
)
def test_damaged_gguf(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert says in error(path)


def test_gguf_cut_anywhere(small_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    content = small_gguf.read_bytes()
    for size in [*range(1, 2000, 131), len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:size])
        assert "not a whole GGUF file" in error(path)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, 2500), st.sampled_from((0, 1, 127, 255)) | st.integers(0, 255), max_size=5))
def test_gguf_with_damaged_bytes_loads_or_says_why(
    small_gguf: Path, tmp_path_factory: pytest.TempPathFactory, damage: dict[int, int]
) -> None:
    content = bytearray(small_gguf.read_bytes())
    for at, byte in damage.items():
        content[at] = byte
    path = tmp_path_factory.mktemp("damaged") / "model.gguf"
    path.write_bytes(content)
    try:
        model = load_model(path)
    except ConfigError as caught:
        assert str(path) in str(caught)  # noqa: PT017
    else:
        assert model.config.layers == 2


def test_fingerprint_of_a_gguf(small_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(small_gguf.read_bytes()[:-3] + b"abc")  # the last tensor's last number
    assert fingerprint(path) != fingerprint(small_gguf)
