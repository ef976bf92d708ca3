"""Pictures of the page, taken from the running product with a scripted node.

`python -m tests.browser.screenshots` renews those of the documents, in docs/images;
`python -m tests.browser.screenshots FOLDER` puts every state in every look there.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from app.node.kinds.scripted import Script
from app.store.embedded import EmbeddedStore
from tests.browser.site import Site, Visitor, open_site

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 375, "height": 667},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
        "locale": "zh-CN",
    },
}
# the pictures of the documents: look and state, file name
DOCUMENTS = {
    "light answering": "chat",
    "light waiting": "waiting",
    "light keys": "keys",
    "dark done": "dark",
    "phone answering": "phone",
}
QUESTION = "How does speculative decoding work, and what does it cost?"
ANSWER = """## Speculative decoding

A large model reads **all its weights once per step**. A small model guesses the tokens that come
next, and the large one checks them *in one pass*.

1. The drafter proposes `k` tokens.
2. The target model checks them together.
3. What agrees is kept; the rest is thrown away.

```python
def accepted(draft: list[int], target: list[int]) -> int:
    \"\"\"How many drafted tokens the target model would have written itself.\"\"\"
    for n, (guess, truth) in enumerate(zip(draft, target)):
        if guess != truth:
            return n
    return len(draft)
```

| drafts kept | speed |
|--:|--:|
| 1 | 1.0x |
| 3 | 2.4x |

> The text is always the target's own. 接受率越高，速度越快。

It pays where reading weights is the limit: at batch 1, and on hardware with little bandwidth. """


class Album:
    """Takes the pictures of one look; with `chosen`, only those, under the names given there."""

    def __init__(self, folder: Path, look: str, chosen: dict[str, str] | None) -> None:
        self._folder = folder
        self._look = look
        self._chosen = chosen
        self._count = 0

    async def take(self, visitor: Visitor, state: str) -> None:
        self._count += 1
        name = f"{self._look}-{self._count:02}-{state}"
        if self._chosen is not None:
            if f"{self._look} {state}" not in self._chosen:
                return
            name = self._chosen[f"{self._look} {state}"]
        path = self._folder / f"{name}.png"
        await visitor.page.screenshot(path=path)
        print(path)  # noqa: T201  # the tool's output


async def walk(site: Site, folder: Path, look: str, chosen: dict[str, str] | None) -> None:
    """Through all states, in the order in which a person meets them."""
    album = Album(folder, look, chosen)
    options = LOOKS[look]
    first, second = await site.visitor(), await site.visitor(**options)
    await second.go()
    await album.take(second, "welcome")
    await first.sign_up(f"First {look}")
    await first.ask("Hello?")
    await first.answered(60)
    await second.sign_up(f"Grace {look}")
    await album.take(second, "empty")
    await second.page.locator("#question").fill(QUESTION)
    await second.page.locator("#send").click()
    await expect(second.card).to_have_attribute("data-kind", "waiting")
    await expect(second.card.locator("h2")).to_contain_text("1")
    await album.take(second, "waiting")
    await first.card.get_by_role("button").click()
    await expect(second.card).to_have_attribute("data-kind", "reading")
    await album.take(second, "reading")
    await expect(second.page.locator(".answer .code .line").nth(3)).to_be_visible(timeout=30_000)
    await album.take(second, "answering")
    await second.answered(60)
    await expect(second.card).to_have_attribute("data-kind", "holding")
    await second.page.locator("#log").evaluate("(log) => log.scrollTo(0, log.scrollHeight)")
    await album.take(second, "done")
    await second.page.locator("#open-settings").click()
    await album.take(second, "settings")
    await second.page.keyboard.press("Escape")
    if look == "phone":
        await second.page.locator("#gauge-more").click()
        await album.take(second, "figures")
        await second.page.locator("#menu").click()
        await expect(second.page.locator("#side")).to_be_in_viewport(ratio=1)
        await album.take(second, "conversations")
    await second.go("/keys")
    await second.page.locator("[name=name]").fill("My site")
    await second.page.locator("[value=publishable]").check()
    await second.page.locator("[name=origins]").fill("https://example.org")
    await second.page.locator("#new-key .primary").click()
    await expect(second.page.locator("#new-secret")).to_be_visible()
    await album.take(second, "keys")
    for visitor in (first, second):
        await visitor.context.request.post(
            f"{site.url}/api/line/leave", data={}, headers={"Origin": site.url}
        )
        await visitor.context.close()


async def main(folder: Path, chosen: dict[str, str] | None) -> None:
    script = Script(text=ANSWER, tokens_per_second=120, prefill_ms_per_token=20)
    with tempfile.TemporaryDirectory() as data:
        store = EmbeddedStore.start(Path(data))
        try:
            async with open_site(store.url, Path(data)) as site:
                await site.node(script, name="gpu-02")
                for look in LOOKS:
                    await walk(site, folder, look, chosen)
        finally:
            store.stop()


if __name__ == "__main__":
    is_for_documents = len(sys.argv) == 1
    target = Path("docs/images" if is_for_documents else sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target, DOCUMENTS if is_for_documents else None))
