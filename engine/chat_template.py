"""From chat messages to prompt ids, through the Jinja template that the checkpoint brings.

Words of a user must not become control tokens. The rendered text is one string, in which the
template's `<|im_end|>` and a typed one look alike; so before rendering, a mark (a character that
occurs in no message) is put inside everything in the messages that spells a control token, or
could become one together with the text behind it. A broken token is encoded as ordinary text, and
the marks are taken out of ordinary text before it is encoded: the user's words arrive unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from engine import deepseek_encoding
from engine.jinja_sandbox import TemplateRefusedError, render
from engine.tokenizer import Tokenizer
from engine.types import ModelCard

__all__ = ["TemplateRefusedError", "plain_prompt_ids", "prompt_ids", "template_stop_texts"]

# What a base model without a template gets; it is no chat model, and the names say who speaks.
_SPEAKERS = {"user": "User", "assistant": "Assistant"}


def prompt_ids(
    tokenizer: Tokenizer,
    card: ModelCard,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of the conversation, ready for the answer. The beginning token stands once.

    `messages` have `role` and `content` (a string); `tools` are as the API takes them, for a
    template that offers them to the model. Raises TemplateRefusedError for messages that
    the template does not take, ModelFileError for a template that is broken.
    """
    try:
        mark = _unused_character(_strings([messages, tools, card.chat_template or ""]))
        guard = _Guard(tokenizer, mark)
        guarded = [
            guard.value(_with_parsed_arguments(message, index))
            for index, message in enumerate(messages)
        ]
        guarded_tools = [guard.value(tool) for tool in tools]
    except RecursionError:
        raise TemplateRefusedError("The messages are nested too deeply.") from None
    if card.chat_template is None and card.architecture == deepseek_encoding.ARCHITECTURE:
        rendered = deepseek_encoding.encode(guarded)
    elif card.chat_template is None:
        rendered = _transcript(guarded, add_generation_prompt)
    else:
        variables = {
            "messages": guarded,
            "tools": guarded_tools or None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": card.bos_token or "",
            "eos_token": card.eos_token or "",
        }
        rendered = render(card.chat_template, variables)
    return _with_bos(tokenizer.encode_with_specials(rendered, mark), tokenizer, card)


def plain_prompt_ids(tokenizer: Tokenizer, card: ModelCard, text: str) -> list[int]:
    """Ids of a text that is to be continued without a template: ordinary tokens, and the
    beginning token where the model wants one."""
    return _with_bos(tokenizer.encode(text), tokenizer, card)


def template_stop_texts(card: ModelCard) -> tuple[str, ...]:
    """Texts that end an answer besides the card's stop tokens: a base model goes on to write the
    user's next turn itself."""
    has_format = card.architecture == deepseek_encoding.ARCHITECTURE
    return () if has_format or card.chat_template is not None else (f"\n{_SPEAKERS['user']}:",)


def _with_bos(ids: list[int], tokenizer: Tokenizer, card: ModelCard) -> list[int]:
    if not card.add_bos or card.bos_token is None:
        return ids
    bos = tokenizer.special_tokens.get(card.bos_token)
    if bos is None or ids[:1] == [bos]:
        return ids
    return [bos, *ids]


def _transcript(messages: Iterable[Any], add_generation_prompt: bool) -> str:
    """`User: ...` and `Assistant: ...` lines, a system text in front without a name."""
    parts: list[str] = []
    for message in messages:
        role, content = str(message.get("role")), message.get("content") or ""
        speaker = _SPEAKERS.get(role)
        parts.append(f"{speaker}: {content}\n" if speaker else f"{content}\n\n")
    if add_generation_prompt:
        # no space behind the colon: the models' tokens carry it in front of the word
        parts.append("Assistant:")
    return "".join(parts)


def _with_parsed_arguments(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Templates loop over a call's arguments; the API carries them as a JSON string."""
    copied = dict(message)
    calls = copied.get("tool_calls")
    if isinstance(calls, list):
        copied["tool_calls"] = [_parsed_call(call, index) for call in cast("list[Any]", calls)]
    return copied


def _parsed_call(call: Any, index: int) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        raise TemplateRefusedError(
            f"The tool call in message {index} has arguments that are no JSON."
        ) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _unused_character(texts: Iterable[str]) -> str:
    """A character from Unicode's private areas that occurs in none of the texts."""
    used: set[str] = set()
    for text in texts:
        used.update(text)
    areas = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    for area in areas:
        for code in area:
            if chr(code) not in used:
                return chr(code)
    raise TemplateRefusedError("The messages use every private character of Unicode.")


class _Guard:
    """Puts the mark into every control token that a string spells."""

    def __init__(self, tokenizer: Tokenizer, mark: str) -> None:
        self._special = tokenizer.special_pattern
        self._mark = mark
        special = tokenizer.special_tokens
        self._beginnings = {text[:end] for text in special for end in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def value(self, value: Any) -> Any:
        """The same structure with guarded strings."""
        if isinstance(value, str):
            while self._special.search(value):
                # once more for a control token that another one contained
                value = self._special.sub(self._broken, value)
            return self._with_broken_end(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _broken(self, found: re.Match[str]) -> str:
        return found[0][0] + self._mark + found[0][1:]

    def _with_broken_end(self, text: str) -> str:
        """Break a beginning of a control token at the end, which the next text might complete.

        White space behind it does not count, as templates trim.
        """
        end = len(text.rstrip())
        # the shortest such end lies inside all longer ones, so one mark breaks them all
        for start in reversed(range(max(0, end - self._longest), end)):
            if text[start:end] in self._beginnings:
                return text[: start + 1] + self._mark + text[start + 1 :]
        return text
