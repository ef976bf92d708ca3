"""Weights that are no numbers are refused, in whichever form they are read."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.types import ModelFileError
from engine.weights.checkpoint import vector
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.opening import open_checkpoint
from engine.weights.rows import Rows
from tests.tiny_gguf import write_gguf

Kind = gguf.GGMLQuantizationType
NAME = "model.layers.0.mlp.down_proj.weight"


def checkpoint(tmp_path: Path, kind: Kind, bad: float | None) -> GgufCheckpoint:
    """One matrix [4, 64]; `bad` stands in it or, of block formats, as a block's scale."""
    values = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    if bad is not None and kind == Kind.F32:
        values[2, 5] = bad
    path = write_gguf(tmp_path / "tiny.gguf", {}, {"blk.0.ffn_down.weight": (values, kind)})
    found = GgufCheckpoint.open(path)
    if bad is not None and kind != Kind.F32:
        data = bytearray(path.read_bytes())
        start = data.index(bytes(found.packed(NAME)[0]))
        data[start : start + 2] = np.float16(bad).tobytes()
        path.write_bytes(data)
        found = GgufCheckpoint.open(path)
    return found


def read(rows: Rows) -> None:
    rows.float32()
    rows.groups_4bit()
    list(rows.blocks())
    rows.blocks_fp8()


FORMS = {
    "float32": Rows.float32,
    "groups": Rows.groups_4bit,
    "blocks": lambda rows: list(rows.blocks()),
    "fp8": Rows.blocks_fp8,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_value_that_is_no_number_is_refused_by_name(
    tmp_path: Path, kind: Kind, bad: float, form: str
):
    rows = Rows(checkpoint(tmp_path, kind, bad), [NAME], (4, 64))
    with pytest.raises(ModelFileError, match=r"down_proj.*no numbers"):
        FORMS[form](rows)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_numbers_are_read_in_every_form(tmp_path: Path, kind: Kind):
    read(Rows(checkpoint(tmp_path, kind, None), [NAME], (4, 64)))


def test_a_vector_that_is_no_number_is_refused(tmp_path: Path):
    values = np.array([1, np.nan, 3, 4], np.float32)
    path = write_gguf(tmp_path / "tiny.gguf", {}, {"output_norm.weight": (values, Kind.F32)})
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight.*no numbers"):
        vector(GgufCheckpoint.open(path), "model.norm.weight", 4)


@pytest.mark.parametrize("where", ["codes", "scales"])
def test_block_fp8_that_is_no_number_is_refused(tmp_path: Path, where: str):
    codes = torch.randn(4, 64).to(torch.float8_e4m3fn)
    scales = torch.ones(1, 1)
    if where == "codes":
        codes.view(torch.uint8)[1, 2] = 0xFF
    else:
        scales[0, 0] = float("nan")
    save_file({"w.weight": codes, "w.weight_scale_inv": scales}, tmp_path / "model.safetensors")
    quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"model_type": "llama", "quantization_config": quantisation}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = Rows(open_checkpoint(tmp_path), ["w.weight"], (4, 64))
    with pytest.raises(ModelFileError, match=r"w\.weight.*no numbers"):
        rows.blocks_fp8()
