"""The page inside the iframe: framed by the key's sites only, and without any cookie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse

ROOT = Path(__file__).parent.parent.parent
LANGUAGES = ROOT / "static" / "lang"
DEFAULT_LANGUAGE = "en"

_environment = Environment(
    loader=FileSystemLoader(ROOT / "templates"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@cache
def languages() -> dict[str, dict[str, Any]]:
    """Language code to its texts, read once."""
    return {file.stem: _read(file) for file in sorted(LANGUAGES.glob("*.json"))}


def _read(file: Path) -> dict[str, Any]:
    texts = cast(dict[str, Any], orjson.loads(file.read_bytes()))
    # the page's sentence promises a return after closing, which a visitor without cookies has not
    return texts | {"queue.kept": texts["embed.kept"]}


def best_language(asked: str) -> str:
    """`zh-CN` means `zh`; what we do not speak means English."""
    code = asked.partition("-")[0].lower()
    return code if code in languages() else DEFAULT_LANGUAGE


def policy(origins: Sequence[str]) -> str:
    """The page's Content-Security-Policy; `origins` are those that `clean_origin` passed."""
    ancestors = " ".join(origins) or "'none'"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify; "
        f"frame-ancestors {ancestors}"
    )


def render(key: str, name: str, origins: Sequence[str], language: str) -> HTMLResponse:
    texts = languages()[language]
    html = _environment.get_template("embed.html").render(
        {"key": key, "name": name, "lang": language, "texts": texts, "t": texts.__getitem__}
    )
    headers = {
        "Cache-Control": "no-store",
        "Content-Language": language,
        "Content-Security-Policy": policy(origins),
        # pages that isolate themselves (COEP) may frame only what says so too
        "Cross-Origin-Embedder-Policy": "require-corp",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Referrer-Policy": "same-origin",
    }
    return HTMLResponse(html, headers=headers)
