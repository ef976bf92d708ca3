"""Refusing a body costs little and counts as a request, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.accounts.routes import KeyBody
from app.bodies import MOST_FIELDS, MOST_ITEMS
from app.chat import browser
from app.chat.openai_request import CompletionIn, MessageIn, StreamOptions
from app.embed import routes as embed
from tests.app.accounts.site import code
from tests.app.embed.site import enter, make_site
from tests.app.serving import serving

WRONG = [1] * 5000
MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionIn, {"model": "m", "messages": WRONG}),
        (CompletionIn, {"model": "m", "messages": [MESSAGE], "stop": WRONG}),
        (CompletionIn, {"model": "m", "messages": [MESSAGE] * (MOST_ITEMS + 1)}),
        (MessageIn, {"role": "user", "content": WRONG}),
        (MessageIn, {"role": "user", "tool_calls": WRONG}),
        (embed.QuestionIn, {"id": "0" * 32, "messages": WRONG}),
        (KeyBody, {"name": "x", "origins": WRONG}),
        (StreamOptions, {str(n): 1 for n in range(MOST_FIELDS + 1)}),
        (browser.QuestionIn, {str(n): 1 for n in range(MOST_FIELDS + 1)}),
        (embed.SessionIn, {str(n): 1 for n in range(MOST_FIELDS + 1)}),
    ],
)
def test_faults_are_not_gathered_by_the_thousand(model: type[BaseModel], body: dict[str, Any]):
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    # one of each kind that a field may be, not one of each item
    assert refused.value.error_count() <= 3


async def test_refused_bodies_use_up_the_minute_too(valkey_url: str, tmp_path: Path):
    async with serving(valkey_url, tmp_path, requests_per_minute=2) as web:
        site = await make_site(web)
        member = site["member"]
        visitor = await enter(web, site["secret"])
        other = await web.member("Adam")
        api = await web.client(Authorization=f"Bearer {await other.key()}")
        for client, path in (
            (member.client, "/api/chat"),
            (visitor.client, "/api/embed/chat"),
            (api, "/v1/chat/completions"),
        ):
            answers = [code(await client.post(path, json={"messages": []})) for _ in range(3)]
            assert answers == [(400, "invalid_request")] * 2 + [(429, "rate_limited")]
