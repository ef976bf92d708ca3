"""Drafts of the model's own further layer, against transformers' `MtpModel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.deepseek_v3 import DeepseekV3
from engine.models.deepseek_v32 import DeepseekV32
from engine.models.glm4_moe_lite import Glm4MoeLite
from engine.models.latent.model import LatentModel
from engine.types import SamplingParams
from engine.weights.folder import FolderCheckpoint
from tests.engine.tiny_latent import Reference, add_draft_layer, reference

pytest.importorskip("transformers", reason="transformers is the reference")

TOLERANCE = 5e-5
GREEDY = SamplingParams(temperature=0.0)
CLASSES = {"deepseek_v3": DeepseekV3, "deepseek_v32": DeepseekV32, "glm4_moe_lite": Glm4MoeLite}


@dataclass(frozen=True, slots=True)
class Case:
    expected: Reference
    drafting: Any  # transformers' MtpModel
    model: LatentModel

    @property
    def states(self) -> Tensor:
        """[T, D] behind the final norm."""
        return self.expected.model.model(torch.tensor([self.expected.token_ids]))[0][0]

    def outcome(self, states: Tensor, token_ids: list[int]) -> Tensor:
        """What transformers' layer makes of a whole text."""
        return self.drafting.forward_layer(
            0,
            states[None],
            torch.arange(len(token_ids))[None],
            None,
            input_ids=torch.tensor([token_ids]),
        )[0]

    def guess(self, outcome: Tensor) -> int:
        return int(self.drafting.shared_head(outcome).argmax())


@pytest.fixture(scope="module", params=CLASSES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    expected = reference(request.param, folder)
    drafting = add_draft_layer(expected.model, folder)
    checkpoint = FolderCheckpoint.open(folder)
    model = CLASSES[request.param](checkpoint, "fp32", inner_eps=1e-6)
    return Case(expected, drafting, model)


@torch.inference_mode()
def test_the_layer_equals_transformers(case: Case):
    token_ids, states = case.expected.token_ids, case.states
    drafter = case.model.drafter()
    assert drafter is not None
    embedded = case.model.embed(token_ids[1:])
    positions = range(len(token_ids) - 1)
    expected = case.outcome(states[:-1], token_ids[1:])
    for expanded in (True, False):
        drafter.forget()
        made = drafter._layer(states[:-1], embedded, positions, drafter._cache, expanded=expanded)
        assert (made - expected).abs().max() < TOLERANCE


@torch.inference_mode()
def test_drafts_follow_prompt_answer_and_each_other(case: Case):
    model, token_ids = case.model, case.expected.token_ids
    drafter = model.drafter()
    assert drafter is not None
    cache = model.new_cache()
    model.prefill(token_ids[:9], cache)
    hidden = model.prefill(token_ids[9:20], cache)
    drafter.begin(token_ids[:20], GREEDY)
    for token_id in token_ids[20:30]:
        drafter.extend([token_id], hidden)
        hidden = model.decode([token_id], cache)
    drafter.extend([token_ids[30]], hidden)

    states, tokens = case.states[:30], token_ids[1:31]
    expected: list[int] = []
    while len(expected) < 7:
        outcome = case.outcome(states, tokens)
        expected.append(case.guess(outcome[-1]))
        states, tokens = torch.cat([states, outcome[-1:]]), [*tokens, expected[-1]]
    assert drafter.propose(7) == expected
    assert drafter.propose(3) == expected[:3]  # guessing leaves nothing behind


@torch.inference_mode()
def test_slots_of_a_text_that_was_cut_back_are_made_anew(case: Case):
    model, token_ids = case.model, case.expected.token_ids
    drafter = model.drafter()
    assert drafter is not None
    cache = model.new_cache()
    model.prefill(token_ids[:20], cache)
    cache.truncate(12)
    hidden = model.prefill([5, 6, 7, 8], cache)
    drafter.begin([*token_ids[:12], 5, 6, 7, 8], GREEDY)
    assert drafter._cache.tokens == tuple(range(15))
    drafter.extend([9], hidden)
    assert drafter._cache.tokens == tuple(range(16))
    assert len(drafter.propose(2)) == 2


@torch.inference_mode()
def test_a_forgotten_text_leaves_no_trace(case: Case):
    drafter = case.model.drafter()
    assert drafter is not None
    case.model.prefill(case.expected.token_ids, case.model.new_cache())
    assert drafter.kind() == "mtp"
    drafter.close()
    assert drafter.kind() is None
    assert drafter.propose(3) == []
    assert not drafter._cache._latents.any()
    assert not drafter._cache._index_keys.any()
