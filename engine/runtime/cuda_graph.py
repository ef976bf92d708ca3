"""The decode step captured as one CUDA graph, and a host that only follows.

Launches run a few steps ahead of what the host has seen. The device writes each token into memory
of the host, by position; the host looks there. It never waits for a particular step and never
copies anything. Steps behind a stop are thrown away: their tokens are not read, their cache
positions not claimed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from engine.runtime.choice import BROKEN, UNSEEN
from engine.runtime.decode_step import DecodeStep
from engine.runtime.rhythm import Rhythm
from engine.types import EngineError, ModelFileError, SamplingParams

# Steps launched beyond the token that the host waits for: long enough to bridge its other work,
# short enough that a cancel or a new question waits a few milliseconds at most.
AHEAD_STEPS = 4
# A step that takes so long is a fault of the device, not slowness.
STUCK_SECONDS = 30.0


class CudaGraph:
    """One captured step."""

    def __init__(self, step: DecodeStep) -> None:
        """Compiles the kernels by a first run, then captures. Leaves the cache's text alone:

        the run stands at position 0, so it must come before anything is prefilled.
        """
        self._step = step
        self.stream = torch.cuda.Stream(step.weights.device)
        step.choice.arm(SamplingParams(temperature=0), 0)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step.enqueue()
            step.choice.arm(SamplingParams(temperature=0), 0)
        self.stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self.stream):
            step.enqueue()

    def launch(self) -> None:
        """One step more, on the current stream."""
        self._graph.replay()

    def tokens(self, sampling: SamplingParams, position: int, most: int) -> Iterator[int]:
        """Token ids from `position` on, each as soon as the host sees it; at most `most`.

        `logits` of the step must stand ready on the current stream. Raises ModelFileError when
        logits are not numbers, EngineError when the device does not answer.
        """
        # what an earlier answer launched and never read must not land behind the reset
        torch.cuda.current_stream().synchronize()
        self._step.choice.arm(sampling, position)
        launched, rhythm = 0, Rhythm()
        for n in range(most):
            while launched < min(n + 1 + AHEAD_STEPS, most):
                self.launch()
                launched += 1
            yield self._look(position + n, rhythm)

    def _look(self, position: int, rhythm: Rhythm) -> int:
        """Wait for the token at `position`."""
        seen = self._step.choice.seen
        token = int(seen[position])
        now_s = time.perf_counter()
        deadline_s = now_s + STUCK_SECONDS
        while token == UNSEEN:
            time.sleep(rhythm.pause_seconds(now_s))
            token = int(seen[position])
            now_s = time.perf_counter()
            if token == UNSEEN and now_s > deadline_s:
                torch.cuda.synchronize()  # raises what went wrong there, if it knows
                raise EngineError("The GPU does not answer. Restart this node.")
        rhythm.seen(now_s)
        if token == BROKEN:
            raise ModelFileError(
                "The model computes values that are not numbers; its file is damaged."
            )
        return token
