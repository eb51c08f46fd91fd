"""`docs/operate/sizing.md`: its table, its formula, and what agents of these sizes really have."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from trunkline.agent.engine.builtin.config import parse_config
from trunkline.kernels.attention.quantized import QuantizedPages
from trunkline.loadtest.fleet.agents import agents, counters

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "sizing.md"
ROW = re.compile(r"^\| ([^|]+)((?: \| [\d,]+){11}) \|$", re.MULTILINE)
GIB, MIB = 1 << 30, 1 << 20


class Shape(NamedTuple):
    """A row of the table."""

    layers: int
    kv_heads: int
    head_dim: int
    page: int
    page_16_bits: int
    stored: int
    device: int
    host: int
    disk: int
    host_int8: int
    disk_int8: int


SHAPES = {
    name: Shape(*(int(cell.replace(",", "")) for cell in cells.split(" | ")[1:]))
    for name, cells in ROW.findall(PAGE.read_text())
}
DEFAULT, EIGHT, SEVENTY = "SmolLM2-135M, the default", "Llama-3.1-8B, Mistral-7B", "Llama-3.1-70B"


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def page(shape: Shape, number_bytes: int) -> int:
    return up(2 * shape.layers * shape.kv_heads * shape.head_dim * 16 * number_bytes, 256)


def quantized(shape: Shape) -> int:
    return up(2 * shape.layers * shape.kv_heads * shape.head_dim * 16 + 8 * shape.layers * shape.kv_heads, 256)


def pages(device: int, stored: int, sizes: tuple[int, int, int]) -> dict[str, int]:
    """`sizes`: bytes of device, host and disk."""
    slot = up(stored, 4096)
    return dict(zip(("device", "host", "disk"), map(int.__floordiv__, sizes, (device, slot, slot + 4096)), strict=True))


def test_the_table_has_the_shapes_that_are_tried_here() -> None:
    assert {DEFAULT, EIGHT, SEVENTY} < set(SHAPES)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_row_is_what_the_formula_says(shape: Shape) -> None:
    assert shape[3:6] == (page(shape, 4), page(shape, 2), quantized(shape))
    each = (GIB, GIB, GIB)
    assert shape[6:9] == tuple(pages(shape.page, shape.page, each).values())
    assert shape[9:11] == tuple(pages(shape.page, shape.stored, each).values())[1:]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_model_of_this_shape_has_such_pages(shape: Shape) -> None:
    heads = shape.kv_heads * 2
    config = {
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": heads * shape.head_dim,
        "intermediate_size": 1024,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    layout = parse_config(config, "config.json").page_layout
    assert layout(torch.float32).page_bytes == shape.page
    assert layout(torch.bfloat16).page_bytes == shape.page_16_bits
    assert QuantizedPages(layout(torch.float32), torch.int8).page_bytes == shape.stored


SIZES = (40 * MIB, 50 * MIB, 60 * MIB)
EMULATED = ("--engine", "emulated", "--page-bytes")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("device", "stored", "flags"),
    [
        (SHAPES[DEFAULT].page, SHAPES[DEFAULT].stored, ("--tier-format", "int8", "--threads", "1")),
        (SHAPES[EIGHT].page_16_bits, SHAPES[EIGHT].page_16_bits, (*EMULATED, str(SHAPES[EIGHT].page_16_bits))),
        (SHAPES[SEVENTY].page, SHAPES[SEVENTY].page, (*EMULATED, str(SHAPES[SEVENTY].page))),
    ],
    ids=["default model, int8", "8B, 16 bits", "70B, float32"],
)
@pytest.mark.usefixtures("model_path")
def test_an_agent_has_as_many_pages(device: int, stored: int, flags: tuple[str, ...], tmp_path: Path) -> None:
    memory, host, disk = map(str, SIZES)
    tiers = ("--kv-memory", memory, "--host-memory", host, "--disk-cache", str(tmp_path / "disk"), "--disk-size", disk)
    with agents(1, (*flags, *tiers), tmp_path) as (agent,):
        found = counters(agent.url)
    assert {tier: found.pages(tier)["total"] for tier in found.tiers()} == pages(device, stored, SIZES)
    assert found["page_bytes"] == device + 2 * stored
