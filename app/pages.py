"""One function per HTML page. The server owns the HTML; what changes, scripts fetch as JSON."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import Response

from app.accounts.caller import Caller, maybe_signed_in
from app.settings import Settings

ROOT = Path(__file__).parent.parent
LANGUAGE_FOLDER = ROOT / "static" / "lang"
DEFAULT_LANGUAGE = "en"

# No inline script or style, nothing from elsewhere; HTML reaches the document only through
# DOMPurify's own Trusted Types policy.
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)

router = APIRouter(include_in_schema=False)

_environment = Environment(
    loader=FileSystemLoader(ROOT / "templates"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

MaybeCaller = Annotated[Caller | None, Depends(maybe_signed_in)]


@cache
def languages() -> dict[str, dict[str, Any]]:
    """Language code to its texts: every file in static/lang is a language. Read once."""
    files = sorted(LANGUAGE_FOLDER.glob("*.json"))
    return {file.stem: cast(dict[str, Any], orjson.loads(file.read_bytes())) for file in files}


def choose_language(request: Request) -> str:
    """`?lang=` where it names a language that we have, else the browser's best one, else English."""
    known = languages()
    asked = request.query_params.get("lang")
    if asked in known:
        return asked
    wishes: list[tuple[float, str]] = []
    for part in request.headers.get("accept-language", "")[:500].split(","):
        tag, _, weight = part.partition(";")
        code = tag.strip().partition("-")[0].lower()
        if code in known:
            wishes.append((_weight(weight), code))
    best = max(wishes, key=lambda wish: wish[0], default=(0.0, DEFAULT_LANGUAGE))
    return best[1] if best[0] > 0 else DEFAULT_LANGUAGE


def _weight(text: str) -> float:
    name, _, value = text.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def render(request: Request, template: str, **values: object) -> HTMLResponse:
    """A page in the visitor's language. Never cached: it says who is signed in."""
    language = choose_language(request)
    texts = languages()[language]

    def t(key: str) -> str:
        return cast(str, texts[key])

    html = _environment.get_template(template).render(
        {"caller": None, "has_sidebar": False, "is_sign_in": False, "stay": False}
        | values
        | {
            "t": t,
            "texts": texts,
            "lang": language,
            "languages": {code: own["language.short"] for code, own in languages().items()},
        }
    )
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": PAGE_POLICY,
        "Content-Language": language,
        "Vary": "Cookie, Accept-Language",
    }
    return HTMLResponse(html, headers=headers)


@router.api_route("/", methods=["GET", "HEAD"])
async def chat_page(request: Request, caller: MaybeCaller) -> Response:
    """The chat, or for strangers what this is and a sign-in form."""
    if caller is None:
        return render(request, "welcome.html")
    settings: Settings = request.app.state.settings
    grace_seconds = int(settings.reconnect_grace_seconds)
    return render(
        request, "chat.html", caller=caller, has_sidebar=True, grace_seconds=grace_seconds
    )


@router.get("/sign-in")
async def sign_in_page(request: Request, caller: MaybeCaller) -> Response:
    return render(request, "sign_in.html", caller=caller, is_sign_in=True)


@router.get("/keys")
async def keys_page(request: Request, caller: MaybeCaller) -> Response:
    if caller is None:
        return RedirectResponse("/sign-in?next=/keys", status_code=303)
    return render(request, "keys.html", caller=caller)
