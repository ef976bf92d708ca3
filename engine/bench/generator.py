"""A generator with the surface of TileRT's, for benchmark code that is written against it.

    generator = Generator(model_weights_dir="/models/glm-5", with_mtp=True)
    generator.from_pretrained()
    text, time_list, accepted_counts, prompt_len = generator.generate("Why is the sky blue?")

Unlike there, sampling may change between any two answers at no cost, and `with_mtp` means whichever
drafters the model has: its own layers, and its prompt. `last` holds the figures of the last answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from engine.chat_template import prompt_ids
from engine.demo_model import demo_model_path
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import EngineError, Finished, GenerateRequest, SamplingParams, Step

WEIGHTS_VARIABLE = "MODEL_WEIGHTS_DIR"


def weights_path(named: str | Path = "") -> Path:
    """The model named; else that of MODEL_WEIGHTS_DIR (a folder or a GGUF file); else the demo
    model. Raises ModelFileError where that one is not installed."""
    chosen = str(named) or os.environ.get(WEIGHTS_VARIABLE, "")
    return Path(chosen) if chosen else demo_model_path()


class Generator:
    """One loaded model that answers one prompt after the other, each from a cold cache."""

    def __init__(
        self,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        model_weights_dir: str | Path = "",
        with_mtp: bool = False,
        top_p: float = 0.9,
        top_k: int = 256,
        use_topp: bool = False,
        sampling_seed: int = 42,
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.sampling_seed = sampling_seed
        self.ignore_eos = False
        self.last: Finished | None = None
        self._path = model_weights_dir
        self._with_mtp = with_mtp
        # speculation on or off, each loaded when it is first asked for
        self._engines: dict[bool, Engine] = {}
        self.update_sampling_params(temperature, top_p, top_k, use_topp)

    def from_pretrained(self) -> None:
        """Load the weights. Raises what `Engine.load` raises."""
        self._engine(self._with_mtp)

    def update_sampling_params(
        self,
        temperature: float = 1.0,
        top_p: float = 0.95,
        top_k: int = 256,
        use_topp: bool = True,
    ) -> None:
        """For the answers from now on; without `use_topp` they are greedy."""
        self._temperature = temperature if use_topp else 0.0
        self._top_p, self._top_k = top_p, top_k

    def generate(
        self,
        prompt: str,
        print_log: bool = True,
        with_mtp: bool | None = None,
        prompt_tokens: Sequence[int] | None = None,
    ) -> tuple[str, list[float], list[int], int]:
        """Answer one user message, or ready-made `prompt_tokens`.

        Returns the text, the seconds of each step after the first, the tokens of each of these steps
        (empty without speculation, where it is always one), and the prompt's length in tokens.
        Raises ValueError for `with_mtp` on a generator without it, otherwise like `Engine.generate`.
        """
        speculative = self._with_mtp if with_mtp is None else with_mtp
        if speculative and not self._with_mtp:
            raise ValueError("This generator was made without MTP. Make it with with_mtp=True.")
        engine = self._engine(speculative)
        ids = prompt_tokens or prompt_ids(
            Tokenizer.from_card(engine.card), engine.card, [{"role": "user", "content": prompt}]
        )
        steps = self._run(engine, ids)
        text = "".join(step.text for step in steps) + (self.last.text if self.last else "")
        times = [
            (step.t_ms - before.t_ms) / 1000 for before, step in zip(steps, steps[1:], strict=False)
        ]
        counts = [len(step.token_ids) for step in steps[1:]] if speculative else []
        if print_log:
            print(text)
        return text, times, counts, len(ids)

    def cleanup(self) -> None:
        """Free the weights; the next `generate` loads them again."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def _run(self, engine: Engine, ids: Sequence[int]) -> list[Step]:
        sampling = SamplingParams(
            temperature=self._temperature, top_p=self._top_p, top_k=self._top_k,
            seed=self.sampling_seed, ignore_eos=self.ignore_eos,
        )  # fmt: skip
        engine.forget()
        steps: list[Step] = []
        request = GenerateRequest(tuple(ids), self.max_new_tokens, sampling)
        for event in engine.generate(request, threading.Event()):
            if isinstance(event, Step):
                steps.append(event)
            elif isinstance(event, Finished):
                self.last = event
        return steps

    def _engine(self, speculative: bool) -> Engine:
        if speculative not in self._engines:
            self._engines[speculative] = Engine.load(
                weights_path(self._path), speculation=speculative
            )
        return self._engines[speculative]

    @property
    def engine(self) -> Engine:
        """The engine that `generate` uses by default. Raises EngineError before `from_pretrained`."""
        if self._with_mtp not in self._engines:
            raise EngineError("The model is not loaded. Call from_pretrained() first.")
        return self._engines[self._with_mtp]
