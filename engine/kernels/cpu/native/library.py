"""The built library with its functions declared: addresses go in as numbers, ctypes does the rest."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_void_p

from engine.kernels.cpu.native.build import NativeUnavailableError, build


class Sizes(Structure):
    """As in llama.h."""

    _fields_ = (
        ("layers", c_int32),
        ("width", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_width", c_int32),
        ("ffn_width", c_int32),
        ("vocabulary", c_int32),
        ("context", c_int32),
        ("eps", c_float),
    )


class Place(Structure):
    """As in llama.h."""

    _fields_ = (
        ("cache", c_void_p),
        ("rotations", c_void_p),
        ("capacity", c_int32),
        ("position", c_int32),
        ("rows", c_int32),
    )


_PARTS = (c_void_p,) * 4  # of `Activations`
_SIGNATURES = {
    "instructions": (c_char_p, ()),
    "most_rows": (c_int, ()),
    "open": (c_void_p, (POINTER(Sizes),)),
    "close": (None, (c_void_p,)),
    "norm": (c_void_p, (c_void_p, c_int, c_int)),
    "matrix": (c_int, (c_void_p, c_int, c_int, c_int, c_int, c_int)),
    "pack": (None, (c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_int)),
    "unpack": (None, (c_void_p, c_int, c_int, c_int, c_void_p)),
    "decode": (c_int, (c_void_p, c_void_p, POINTER(Place), c_int)),
    "score": (c_int, (c_void_p, c_void_p, c_int, c_void_p, c_int)),
    "quantise": (None, (c_void_p, c_int, c_int, *_PARTS)),
    "product": (None, (c_void_p, c_int, c_int, *_PARTS, c_int, c_void_p)),
    "rms_norm": (None, (c_void_p, c_void_p, c_int, c_float, c_void_p)),
    "swiglu": (None, (c_void_p, c_void_p, c_int, c_void_p)),
    "attend": (None, (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p)),
}


class Library:
    """Functions of baton.cpp by their names without `baton_`."""

    def __init__(self, path: str) -> None:
        """Raises NativeUnavailableError when the file is not what was built."""
        try:
            loaded = ctypes.CDLL(path)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(loaded, f"baton_{name}")
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise NativeUnavailableError(
                f"What was built for the native level cannot be loaded ({error}). "
                f"Delete {path}, or choose another level."
            ) from None
        self.open, self.close = loaded.baton_open, loaded.baton_close
        self.norm, self.matrix, self.pack = (
            loaded.baton_norm,
            loaded.baton_matrix,
            loaded.baton_pack,
        )
        self.unpack = loaded.baton_unpack
        self.decode, self.score = loaded.baton_decode, loaded.baton_score
        self.quantise, self.product = loaded.baton_quantise, loaded.baton_product
        self.rms_norm, self.swiglu = loaded.baton_rms_norm, loaded.baton_swiglu
        self.attend = loaded.baton_attend
        # rows that one pass can hold
        self.most_rows: int = loaded.baton_most_rows()
        self.instructions: str = loaded.baton_instructions().decode()
        # the key it was built under: same key, same machine code
        self.key = path.rsplit("-", 1)[-1].removesuffix(".so")


@functools.cache
def library() -> Library:
    """The library of this machine, built at the first call. Raises NativeUnavailableError."""
    return Library(str(build()))
