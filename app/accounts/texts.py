"""Cleaning what people type: names, labels, passwords, origins. Each says what is wrong with it."""

from __future__ import annotations

import unicodedata
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import urlsplit

from app.errors import InvalidRequestError

NAME_CHARACTERS = (2, 40)
LABEL_CHARACTERS = (1, 80)
PASSWORD_CHARACTERS = (8, 200)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def clean_name(text: str) -> str:
    """A user's name: NFKC, one blank between words; raises InvalidRequestError."""
    return _clean(text, NAME_CHARACTERS, "name")


def clean_label(text: str) -> str:
    """A key's name, by the same rules."""
    return _clean(text, LABEL_CHARACTERS, "name")


def name_key(name: str) -> str:
    """What two names must not share: `Ｅva`, `EVA` and `eva` are one name."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFKC", " ".join(folded.split()))


def clean_password(text: str) -> str:
    """NFKC, so that every keyboard types the same one; raises InvalidRequestError."""
    least, most = PASSWORD_CHARACTERS
    password = unicodedata.normalize("NFKC", text)
    if not least <= len(password) <= most or len(text) > most:
        raise InvalidRequestError(f"A password has {least} to {most} characters.", param="password")
    return password


def clean_origin(text: str) -> str:
    """An origin as browsers send it, e.g. `https://example.org`; raises InvalidRequestError.

    Lower case, the scheme's own port left out. A lone final slash is forgiven. A host must be ASCII:
    translations to `xn--` differ between versions of the standard, and a wrong one binds a stranger.
    """
    shown = text[:100]
    if not text.isascii():
        raise InvalidRequestError(
            f"“{shown}” holds letters beyond ASCII. Write the host in its xn-- form, as the browser's "
            "address bar gives it when copied.",
            param="origins",
        )
    if any(unicodedata.category(c).startswith(("C", "Z")) for c in text) or len(text) > 280:
        raise _bad_origin(shown)
    try:
        parts = urlsplit(text.removesuffix("/"))
        port = parts.port
        host = _host(parts.hostname or "")
    except ValueError as error:
        raise _bad_origin(shown) from error
    scheme = parts.scheme.lower()
    more = parts.path or parts.query or parts.fragment or "?" in text or "#" in text
    if scheme not in _DEFAULT_PORTS or not host or more or "@" in parts.netloc or port == 0:
        raise _bad_origin(shown)
    if parts.netloc.endswith(":") or port in (None, _DEFAULT_PORTS[scheme]):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}"


def _host(host: str) -> str:
    """Raises ValueError for what no browser would call a host."""
    if ":" in host:
        try:
            return f"[{IPv6Address(host).compressed}]"
        except AddressValueError as error:
            raise ValueError(host) from error
    labels = host.removesuffix(".").split(".")
    if not all(1 <= len(label) <= 63 for label in labels):
        raise ValueError(host)
    if not all(c.isalnum() or c in "-._" for c in host):
        raise ValueError(host)
    return host


def _bad_origin(shown: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"“{shown}” is not an origin. Write scheme, host and port only, for example "
        "https://example.org or http://localhost:3000; a * is not allowed.",
        param="origins",
    )


def _clean(text: str, characters: tuple[int, int], what: str) -> str:
    least, most = characters
    cleaned = " ".join(unicodedata.normalize("NFKC", text).split())
    if not least <= len(cleaned) <= most:
        raise InvalidRequestError(f"A {what} has {least} to {most} characters.", param="name")
    # control, format (also the ones that turn text around), surrogate, private, unassigned
    if any(unicodedata.category(c).startswith("C") for c in cleaned):
        raise InvalidRequestError(f"A {what} has visible characters only.", param="name")
    return cleaned
