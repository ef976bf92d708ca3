"""With drafts the text is the plain one, token for token: many seeds, temperatures and drafters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.cache import KvCache
from engine.card import card_from_gguf
from engine.engine import Engine
from engine.models import Model, load_model
from engine.speculation.director import Director
from engine.speculation.drafter import Drafter
from engine.speculation.lookup import Lookup
from engine.speculation.model import ModelDrafter
from engine.types import Finished, GenerateRequest, ModelCard, SamplingParams, Step
from engine.weights.gguf import GgufFile
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.native import native_or_skip
from tests.engine.references import CAP, CAP_TEXT, COUNT
from tests.engine.speculation.paces import Bold, Fickle
from tests.engine.tiny_llama import TinyLlama
from tests.tiny_gguf import tiny_vocabulary, write_gguf

VOCABULARY = 258
SEEDS, TEMPERATURES = range(50), (0.0, 0.25, 0.8)
TOKENS = 24


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """torch's threads would wait for each other through thousands of tiny products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    metadata = {
        **tiny_vocabulary(control=["<end>"]),
        "llama.context_length": 256,
        "tokenizer.ggml.eos_token_id": VOCABULARY - 1,
    }
    path = write_gguf(tmp_path_factory.mktemp("card") / "card.gguf", metadata, {})
    return card_from_gguf(GgufFile.open(path), name="tiny", numerics="tiny")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, str], Model]]:
    """Tiny models by layers and level; one of fewer layers is another model."""
    folder = tmp_path_factory.mktemp("tiny")
    native_or_skip()
    opened: list[Model] = []

    def make(layers: int, level: str) -> Model:
        tiny = TinyLlama(layers=layers, vocabulary=VOCABULARY, context_tokens=256)
        for name, weight in tiny.weights.items():
            if "attn_output" in name or "ffn_down" in name:
                weight *= 0.4  # shallower thoughts, so that the two models often agree
        model = load_model(GgufCheckpoint.open(tiny.write(folder / f"{layers}.gguf")), level, 256)
        model.use_threads(1)
        opened.append(model)
        return model

    yield make
    for model in opened:
        model.close()


def ask(
    engine: Engine,
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int = TOKENS,
    *,
    stop: tuple[str, ...] = (),
    resume: Sequence[int] = (),
) -> tuple[tuple[int, ...], str, Finished]:
    request = GenerateRequest(tuple(prompt), max_tokens, sampling, stop, tuple(resume))
    events = list(engine.generate(request, threading.Event()))
    done = events[-1]
    assert isinstance(done, Finished)
    steps = [event for event in events if isinstance(event, Step)]
    text = "".join(step.text for step in steps) + done.text
    return tuple(token for step in steps for token in step.token_ids), text, done


def prompts(seed: int) -> tuple[int, ...]:
    """Random, but with a repetition in it."""
    some = np.random.default_rng(seed).integers(0, 60, 12).tolist()
    return (*some, *some[:7])


@pytest.mark.parametrize(
    ("level", "who"),
    [
        ("native", "lookup"),
        ("native", "twin"),
        ("native", "stranger"),
        ("native", "lookup and stranger"),
        ("int8", "lookup"),
    ],
)
def test_fifty_seeds_at_three_temperatures(
    models: Callable[[int, str], Model], card: ModelCard, level: str, who: str
):
    model = models(3, level)
    drafters: list[Drafter] = [Lookup()] if "lookup" in who else []
    if "twin" in who:
        drafters.append(ModelDrafter(models(3, "int8")))
    if "stranger" in who:
        drafters.append(ModelDrafter(models(2, "native")))
    plain = Engine(model, card, 16)
    paces = [Engine(model, card, 16, Director(drafters, pace)) for pace in (Bold(), Fickle())]
    steps = tokens = 0
    for seed in SEEDS:
        engine = paces[seed % 2]
        for temperature in TEMPERATURES:
            sampling = SamplingParams(temperature, top_p=0.95, seed=seed)
            expected = ask(plain, prompts(seed), sampling)
            actual = ask(engine, prompts(seed), sampling)
            assert actual[:2] == expected[:2]
            assert actual[2].finish_reason == expected[2].finish_reason
            assert engine._cache.tokens == plain._cache.tokens
            tokens += len(actual[0])
            steps += len(actual[0]) / actual[2].accepted.mean
        if seed % 5 == 0:
            engine.forget()
    # or nothing was tested
    assert tokens / steps > 1.02


@pytest.mark.parametrize("seed", range(3))
def test_stop_texts_limits_and_other_nodes_tokens_change_nothing(
    models: Callable[[int, str], Model], card: ModelCard, seed: int
):
    model = models(3, "native")
    plain = Engine(model, card, 16)
    bold = Engine(model, card, 16, Director([Lookup(), ModelDrafter(models(3, "int8"))], Bold()))
    sampling = SamplingParams(0.25, seed=seed)
    ids, text, _ = ask(plain, prompts(seed), sampling)
    for limit in range(1, 12):
        assert ask(bold, prompts(seed), sampling, limit)[0] == ids[:limit]
    for at in range(0, len(text) - 2, 5):
        stop = (text[at : at + 2],)
        expected = ask(plain, prompts(seed), sampling, stop=stop)
        assert ask(bold, prompts(seed), sampling, stop=stop)[:2] == expected[:2]
    for cut in range(1, len(ids), 7):
        bold.forget()
        rest = ask(bold, prompts(seed), sampling, resume=ids[:cut])
        assert ids[:cut] + rest[0] == ids
        plain.forget()
        ask(plain, prompts(seed), sampling)
        mine, theirs = bold._cache, plain._cache
        assert isinstance(mine, KvCache)
        assert isinstance(theirs, KvCache)
        assert mine.tokens == theirs.tokens
        end = mine.length
        assert torch.equal(mine._data[:, :, :, :end], theirs._data[:, :, :, :end])


def test_the_context_ends_both_in_the_same_place(
    models: Callable[[int, str], Model], card: ModelCard
):
    model = models(3, "native")
    prompt = [*prompts(1)] * 13  # 247 tokens
    results = [
        ask(Engine(model, card, 64, director), prompt, SamplingParams(0.25, seed=3))
        for director in (None, Director([Lookup(), ModelDrafter(models(3, "int8"))], Bold()))
    ]
    assert results[0][:2] == results[1][:2]
    assert [r[2].finish_reason for r in results] in (["length"] * 2, ["stop"] * 2)


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Iterator[tuple[Engine, Engine]]:
    native_or_skip()
    plain = Engine.load(smollm2_path, threads=1, context_tokens=512, speculation=False)
    bold = Engine(plain.model, plain.card, 128, Director([Lookup()], Bold()))
    yield plain, bold
    plain.close()


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_real_model_writes_what_it_would_have(
    real: tuple[Engine, Engine], temperature: float, seed: int
):
    plain, bold = real
    sampling = SamplingParams(temperature, top_p=0.95, seed=seed)
    for reference in (COUNT, CAP):
        expected = ask(plain, reference.prompt_ids, sampling)
        assert ask(bold, reference.prompt_ids, sampling)[:2] == expected[:2]


def test_the_real_model_s_own_repetitions_come_in_fewer_steps(real: tuple[Engine, Engine]):
    _, bold = real
    ids, _, done = ask(bold, COUNT.prompt_ids, SamplingParams(0), 40)
    assert ids == COUNT.answer_ids
    assert done.accepted.mean > 1.2
    assert 0 < done.accepted.drafting_share < 1


def test_a_loaded_engine_speculates_by_itself_and_takes_a_drafter(smollm2_path: Path):
    engine = Engine.load(smollm2_path, threads=1, context_tokens=128, drafter=smollm2_path)
    assert [type(d) for d in engine._director._drafters] == [Lookup, ModelDrafter]
    assert ask(engine, CAP.prompt_ids, SamplingParams(0))[1] == CAP_TEXT
    engine.close()
