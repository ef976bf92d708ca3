"""A body of `POST /v1/chat/completions`: checked, and refused where we could not do what it says.

Nothing that changes the answer is ignored in silence: a field is honoured, or it has a value that
asks for nothing, or the request is refused with the field's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from app.bodies import Bounded, StrictBody
from app.chat.openai_choice import ChoiceIn
from app.chat.prompt import AnswerSettings
from app.errors import InvalidRequestError

MAX_STOPS = 256
MAX_STOP_CHARACTERS = 1000
MAX_STOP_CHARACTERS_IN_ALL = 16_000
MAX_SEED = 2**63 - 1
MAX_TOOLS = 128

StopText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_ROLES = {"developer": "system"}


class StreamOptions(StrictBody):
    include_usage: bool = False
    # pads chunks against an eavesdropper on their lengths; ours come in frames anyway
    include_obfuscation: bool = False


class MessageIn(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Bounded[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Bounded[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    # thoughts of an earlier answer, for templates that show them to the model
    reasoning_content: str | None = None


class FunctionIn(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(StrictBody):
    type: Literal["function"]
    function: FunctionIn


class CompletionIn(ChoiceIn):
    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=200)
    messages: Bounded[MessageIn] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    # -1 is how some servers spell "all"
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: StopText | Bounded[StopText] | None = None
    tools: Bounded[ToolIn] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop texts are taken")
        if isinstance(stop, list) and sum(map(len, stop)) > MAX_STOP_CHARACTERS_IN_ALL:
            raise ValueError(f"at most {MAX_STOP_CHARACTERS_IN_ALL} characters are taken in all")
        return stop

    def for_answer(self) -> AnswerSettings:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return AnswerSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            seed=self.seed,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=stop,
            tools=self._offered(),
            choice=self.for_choice(),
        )

    def _offered(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model is told of. Raises InvalidRequestError."""
        if self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError(
                '`tool_choice` is "auto" or "none" here: whether and what to call is the model\'s choice.',
                param="tool_choice",
            )
        if not self.tools or self.tool_choice == "none":
            return ()
        if len(self.tools) > MAX_TOOLS:
            raise InvalidRequestError(
                f"There are {len(self.tools)} tools; at most {MAX_TOOLS} are taken.", param="tools"
            )
        if self.parallel_tool_calls is False:
            raise InvalidRequestError(
                "`parallel_tool_calls` cannot be switched off: how many tools to call is the model's "
                "choice. Leave it out.",
                param="parallel_tool_calls",
            )
        return tuple(tool.model_dump(exclude_none=True) for tool in self.tools)


def _is_none_choice(value: object) -> bool:
    return value in (None, "none")


def _is_one(value: object) -> bool:
    return value is None or value == 1


def _is_empty(value: object) -> bool:
    return not value


def _is_text_only(value: object) -> bool:
    return value in (None, ["text"])


# Fields that we do not honour, and the values that ask for nothing.
_NEUTRAL: dict[str, Callable[[object], bool]] = {
    "n": _is_one,
    "best_of": _is_one,
    "functions": _is_empty,
    "function_call": _is_none_choice,
    "modalities": _is_text_only,
    "audio": _is_empty,
    "web_search_options": _is_empty,
    "reasoning_effort": _is_none_choice,
    "verbosity": lambda value: value in (None, "medium"),
}
# Fields that change nothing about the answer.
_NO_EFFECT = frozenset({
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "metadata", "store",
    "service_tier", "prediction",
})  # fmt: skip


def refuse_unsupported(body: CompletionIn, *, most_messages: int) -> None:
    """Raises InvalidRequestError naming the first field whose wish cannot be met."""
    extra = body.model_extra or {}
    for name, value in extra.items():
        neutral = _NEUTRAL.get(name)
        if neutral is not None and not neutral(value):
            raise InvalidRequestError(
                f"`{name}` is not supported with this value. Leave it out.", param=name
            )
        if neutral is None and name not in _NO_EFFECT:
            raise InvalidRequestError(f"`{name[:100]}` is not a known field.", param=name[:100])
    if len(body.messages) > most_messages:
        raise InvalidRequestError(
            f"There are {len(body.messages)} messages; at most {most_messages} are taken.",
            param="messages",
        )


def chat_messages(messages: Sequence[MessageIn]) -> list[dict[str, Any]]:
    """The messages as a chat template wants them: every content a string.

    Raises InvalidRequestError naming the message or part that cannot be taken.
    """
    return [_chat_message(message, index) for index, message in enumerate(messages)]


def _chat_message(message: MessageIn, index: int) -> dict[str, Any]:
    where = f"messages[{index}].content"
    made: dict[str, Any] = {"role": _ROLES.get(message.role, message.role)}
    if message.content is None:
        # an assistant that only called tools, or said nothing
        if message.role != "assistant":
            raise InvalidRequestError(f"`{where}` must be a text.", param=where)
        made["content"] = ""
    elif isinstance(message.content, str):
        made["content"] = message.content
    else:
        parts = message.content
        made["content"] = "".join(_text_of(part, f"{where}[{i}]") for i, part in enumerate(parts))
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value:
            made[name] = value
    return made


def _text_of(part: Mapping[str, Any], where: str) -> str:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return text
    if kind in ("text", "refusal"):
        raise InvalidRequestError(f"`{where}` has no text.", param=where)
    raise InvalidRequestError(
        f"`{where}` is of type {str(kind)[:40]!r}; only text parts are read here.", param=where
    )
