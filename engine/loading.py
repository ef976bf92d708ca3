"""From a model file to something that can answer: device, level, weights, card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.kernels import NATIVE
from engine.machine import core_count, processor
from engine.memory import memory_for
from engine.models import Model, best_level, load_model
from engine.runtime.device import CUDA_LEVEL, choose_device
from engine.runtime.native import native_label
from engine.speculation.director import Director
from engine.speculation.drafter import Drafter, DraftsItself
from engine.speculation.lookup import Lookup
from engine.speculation.model import ModelDrafter
from engine.tokenizer import Tokenizer
from engine.types import EngineError, ModelCard
from engine.weights.checkpoint import Checkpoint
from engine.weights.opening import open_checkpoint, read_card

# Prompt tokens per pass; cancel is looked at between two. Time for 512 tokens of SmolLM2 against
# 128 at once: 64 takes 1.2 of it, 256 and 512 take 0.93.
CHUNK_TOKENS = 128
CUDA_CHUNK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Model
    card: ModelCard
    chunk_tokens: int


def load(
    path: str | Path,
    *,
    level: str,
    threads: int | None,
    context_tokens: int | None,
    name: str | None,
    device: str,
) -> Loaded:
    """Arguments and errors as of `Engine.load`."""
    torch.set_num_threads(threads or default_threads())
    checkpoint = open_checkpoint(path)
    name = name or model_name(Path(path))
    if choose_device(device, level, checkpoint) == "cuda":
        return _load_cuda(checkpoint, context_tokens, name)
    if level == "auto":
        level = best_level(checkpoint)
    with memory_for("the model's weights"), torch.inference_mode():
        model = load_model(checkpoint, level, context_tokens)
    if threads:
        model.use_threads(threads)
    card = read_card(checkpoint, name=name, numerics=numerics(checkpoint, level, processor()))
    return Loaded(model, replace(card, context_tokens=model.context_tokens), CHUNK_TOKENS)


def _load_cuda(checkpoint: Checkpoint, context_tokens: int | None, name: str) -> Loaded:
    # only a machine with a GPU has what this imports
    from engine.runtime.cuda_llama import CudaLlama

    with memory_for("the model's weights"), torch.inference_mode():
        model = CudaLlama.load(checkpoint, context_tokens)
    label = numerics(checkpoint, CUDA_LEVEL, torch.cuda.get_device_name())
    card = read_card(checkpoint, name=name, numerics=label)
    return Loaded(model, replace(card, context_tokens=model.context_tokens), CUDA_CHUNK_TOKENS)


def model_name(path: Path) -> str:
    """A file's name without its ending; a folder's name as it is."""
    return path.stem if path.is_file() else path.resolve().name


def director(loaded: Loaded, drafter: str | Path | None, threads: int | None) -> Director:
    """Who guesses tokens for this model: its own text first, its own drafter, then the named one.

    Raises EngineError for a drafter of another vocabulary, otherwise like `load`.
    """
    drafters: list[Drafter] = [Lookup()]
    own = loaded.model.drafter() if isinstance(loaded.model, DraftsItself) else None
    if own is not None:
        drafters.append(own)
    if drafter is not None:
        drafters.append(_model_drafter(loaded, drafter, threads))
    return Director(drafters)


def _model_drafter(loaded: Loaded, drafter: str | Path, threads: int | None) -> ModelDrafter:
    small = load(
        drafter,
        level="auto",
        threads=threads,
        context_tokens=loaded.card.context_tokens,
        name=None,
        device="cpu",
    )
    mine, theirs = Tokenizer.from_card(loaded.card), Tokenizer.from_card(small.card)
    if (mine.vocab_size, loaded.card.tokenizer_json) != (
        theirs.vocab_size,
        small.card.tokenizer_json,
    ):
        small.model.close()
        raise EngineError(
            f"{Path(drafter).name} has another vocabulary than the model, so it cannot guess for "
            "it. Choose a smaller model of the same family, or none."
        )
    return ModelDrafter(small.model)


def default_threads() -> int:
    """One core less than this process may use, so the rest of Baton has one; from 1 to 8.

    It is for torch's: the native level has its own, which share a busy core well, and uses all.
    torch's meet after every product and wait for the slowest. Measured on two cores with
    SmolLM2 at int4: on a quiet machine two threads are 1.5 times as fast as one, on a busy one
    (docs/results/2026-11-30-offline-cpu.json) nine times as slow. A node that has a machine to
    itself should be given all its cores.
    """
    return max(1, min(8, core_count() - 1))


def numerics(checkpoint: Checkpoint, level: str, hardware: str) -> str:
    """Equal labels promise equal texts: the weights, the level, and what computes.

    The processor's or GPU's name is in it because the libraries choose their kernels by it. The
    number of threads is not: results were equal to the bit with one and with two.
    """
    if level == NATIVE:
        level = native_label()
    return f"{checkpoint.sha256()[:16]}/{level}/{hardware}/torch {torch.__version__}"
