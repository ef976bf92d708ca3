"""Files as memory, with sentences for what can go wrong."""

from __future__ import annotations

import mmap
from pathlib import Path

from engine.types import ModelFileError


def map_file(path: Path) -> mmap.mmap:
    """The whole file, private pages. Raises ModelFileError."""
    try:
        with path.open("rb") as file:
            # Private pages: the file cannot change through them, and torch takes the arrays as
            # they are (it warns about read-only memory).
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise ModelFileError(
            f"There is no model file at {path}. Check the path, or download the model again."
        ) from None
    except ValueError:
        raise ModelFileError(f"The model file {path} is empty. Download it again.") from None
    except OSError as error:
        raise ModelFileError(
            f"The model file {path} cannot be read ({error.strerror}). Check what it is and who may read it."
        ) from None
