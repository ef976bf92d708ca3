"""Running out of memory, by its one name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.types import OutOfMemoryError


@contextmanager
def memory_for(purpose: str) -> Iterator[None]:
    """Turn the allocators' own errors into OutOfMemoryError with a sentence for the user.

    torch has a class for it on a GPU only; on the CPU it is a RuntimeError that says "memory".
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise OutOfMemoryError(
            f"The machine has no memory left for {purpose}. "
            "Choose a smaller model, a smaller level or a shorter context."
        ) from error
