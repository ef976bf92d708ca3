"""The DeepSeek and GLM families against transformers on tiny random models, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models import MODELS
from engine.models.latent.model import LatentModel
from engine.weights.folder import FolderCheckpoint
from tests.engine.tiny_latent import CONFIGS, Reference, reference

pytest.importorskip("transformers", reason="transformers is the reference")

TOLERANCE = 5e-5
INNER_EPS = 1e-6  # transformers' own, whatever the config says


@pytest.fixture(scope="module", params=CONFIGS)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Reference, LatentModel]:
    folder = tmp_path_factory.mktemp(request.param)
    expected = reference(request.param, folder)
    checkpoint = FolderCheckpoint.open(folder)
    kind: Any = MODELS[checkpoint.architecture]
    model = kind(checkpoint, "fp32", inner_eps=INNER_EPS)
    assert isinstance(model, LatentModel)
    return expected, model


@torch.inference_mode()
def logits(model: LatentModel, ids: list[int], chunks: list[int], decoded: int) -> Tensor:
    """Rows behind each chunk and each decoded token; [len(chunks) + decoded, V]."""
    cache = model.new_cache()
    rows, start = [], 0
    for size in chunks:
        rows.append(model.logits(model.prefill(ids[start : start + size], cache)))
        start += size
    for token_id in ids[start : start + decoded]:
        rows.append(model.logits(model.decode([token_id], cache)))
    return torch.cat(rows)


def test_prefill_equals_transformers(case: tuple[Reference, LatentModel]):
    expected, model = case
    with torch.inference_mode():
        cache = model.new_cache()
        hidden = model._forward(expected.token_ids, cache, expanded=True)
        ours = model.logits(hidden)
    assert (ours - expected.logits).abs().max() < TOLERANCE
    assert expected.logits.std() > 0.5


def test_token_by_token_equals_transformers(case: tuple[Reference, LatentModel]):
    expected, model = case
    ours = logits(model, expected.token_ids, [1], 39)
    assert (ours - expected.logits).abs().max() < TOLERANCE


def test_prefill_in_chunks_then_decode_equals_transformers(case: tuple[Reference, LatentModel]):
    expected, model = case
    ours = logits(model, expected.token_ids, [11, 9, 10], 10)
    assert (ours - expected.logits[[10, 19, *range(29, 40)]]).abs().max() < TOLERANCE
