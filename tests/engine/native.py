"""The native library for tests, or the reason why they are skipped."""

from __future__ import annotations

import pytest

from engine.kernels.cpu.native.build import NativeUnavailableError
from engine.kernels.cpu.native.library import Library, library


def native_or_skip() -> Library:
    try:
        return library()
    except NativeUnavailableError as error:
        pytest.skip(str(error))
