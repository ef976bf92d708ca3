"""The generator for benchmark code that is written against TileRT's."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench.generator import WEIGHTS_VARIABLE, Generator, weights_path
from engine.types import EngineError

PROMPT = "Repeat: one two three four, one two three four, one two three four."


@pytest.fixture(scope="module")
def generator(smollm2_path: Path) -> Generator:
    made = Generator(24, model_weights_dir=smollm2_path, with_mtp=True)
    made.from_pretrained()
    return made


def test_speculation_changes_the_counts_and_not_the_text(generator: Generator):
    generator.ignore_eos = True
    plain, plain_times, no_counts, prompt_len = generator.generate(PROMPT, False, with_mtp=False)
    text, times, counts, same_len = generator.generate(PROMPT, print_log=False)
    assert text == plain
    assert prompt_len == same_len > 0
    assert no_counts == []
    assert len(plain_times) == 23
    assert sum(counts) == 23
    assert len(counts) == len(times)


def test_the_seed_decides_and_greedy_knows_none(generator: Generator):
    generator.update_sampling_params(temperature=1.5, top_p=1.0, top_k=0, use_topp=True)
    texts: list[str] = []
    for seed in (1, 1, 2):
        generator.sampling_seed = seed
        texts.append(generator.generate(PROMPT, print_log=False)[0])
    assert texts[0] == texts[1] != texts[2]
    generator.update_sampling_params(use_topp=False)
    greedy = generator.generate(PROMPT, print_log=False)[0]
    generator.sampling_seed = 1
    assert generator.generate(PROMPT, print_log=False)[0] == greedy


def test_ready_made_tokens_are_taken_as_they_are(generator: Generator):
    assert generator.generate("", False, prompt_tokens=[5, 6, 7])[3] == 3


def test_what_it_was_not_made_for_it_refuses():
    made = Generator()
    with pytest.raises(ValueError, match="with_mtp=True"):
        made.generate("x", with_mtp=True)
    with pytest.raises(EngineError, match="from_pretrained"):
        _ = made.engine


def test_a_named_model_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(WEIGHTS_VARIABLE, "/models/variable")
    assert weights_path() == Path("/models/variable")
    assert weights_path("/models/named") == Path("/models/named")
