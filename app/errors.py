"""Every fault a caller can meet: a code, an HTTP status, a sentence for a person.

Rooms raise. `install` is the one border where a fault becomes HTTP, in OpenAI's error shape for
every route; `chat/turn.py` is the one place where it becomes a turn's last event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

log = structlog.get_logger(__name__)

_SHOWN_CHARACTERS = 200
# what pydantic calls the branches of a union, beside list[...] and function-before[...]
_BRANCHES = frozenset({"str", "constrained-str", "int", "float", "bool", "dict", "none"})


class AppError(Exception):
    """Base of all faults shown to callers.

    `code` is stable and machine-readable; `message` is a whole sentence that says what happened
    and what helps; `retry_after_seconds` is set where trying again later helps.
    """

    code = "internal"
    status = 500
    # OpenAI's coarse class of an error, used in its error shape
    kind = "server_error"
    message = "Something went wrong on our side. Trying again may help."

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after_seconds: int | None = None,
        param: str | None = None,
    ) -> None:
        self.message = message or type(self).message
        self.retry_after_seconds = retry_after_seconds
        self.param = param
        super().__init__(self.message)


class StoreUnavailableError(AppError):
    code = "store_unavailable"
    status = 503
    message = (
        "The line is out of reach for a moment. Your place is kept; try again in a few seconds."
    )

    def __init__(self, message: str | None = None, *, retry_after_seconds: int | None = 5) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


class InvalidRequestError(AppError):
    code = "invalid_request"
    status = 400
    kind = "invalid_request_error"
    message = "The request is not understood."


class PromptTooLongError(InvalidRequestError):
    code = "context_length_exceeded"
    message = "The conversation is longer than the model can read."


class ModelNotFoundError(AppError):
    code = "model_not_found"
    status = 404
    kind = "invalid_request_error"
    message = "There is no such model here."


class NotSignedInError(AppError):
    code = "not_signed_in"
    status = 401
    kind = "authentication_error"
    message = "Sign in to go on."


class ForbiddenError(AppError):
    code = "forbidden"
    status = 403
    kind = "permission_error"
    message = "This is not allowed."


class NotFoundError(AppError):
    code = "not_found"
    status = 404
    kind = "invalid_request_error"
    message = "There is nothing here."


class TooManyRequestsError(AppError):
    code = "rate_limited"
    status = 429
    kind = "rate_limit_error"
    message = "That was too fast. Wait a little and try again."


class LineFullError(TooManyRequestsError):
    code = "line_full"
    message = "The line is full. Try again in a few minutes."


class AddressFullError(TooManyRequestsError):
    code = "address_full"
    message = (
        "Many people at your network address are in line already. Try again when one has left."
    )


class PoolEmptyError(AppError):
    code = "no_node"
    status = 503
    message = "No node serves this model right now. Try again in a minute."


class RaceBusyError(TooManyRequestsError):
    code = "race_busy"
    message = "A race needs a node that nobody else wants, and there is none now. Ask without it."


class SeatElsewhereError(TooManyRequestsError):
    code = "seat_elsewhere"
    message = "You already have a place in another line. Leave it first."


class TooManyQuestionsError(TooManyRequestsError):
    code = "too_many_questions"
    message = "You have several questions waiting already. Let one be answered first."


class TooManyReadersError(TooManyRequestsError):
    code = "too_many_readers"
    message = "This answer is open in too many places at once. Close some of them, then reload."


class NoLeaseError(AppError):
    code = "no_lease"
    status = 409
    kind = "invalid_request_error"
    message = "You hold no node, or its time is over already. Ask something to get one."


class OthersWaitError(AppError):
    code = "others_wait"
    status = 409
    kind = "invalid_request_error"

    def __init__(self, waiting: int) -> None:
        who = "Somebody is" if waiting == 1 else f"{waiting} people are"
        super().__init__(f"{who} waiting, so your time cannot be extended.")


class GenerationNotFoundError(NotFoundError):
    code = "turn_not_found"
    message = "This answer is no longer in memory. Reload the conversation."


class FencedError(AppError):
    """A node wrote with a fence that is no longer the generation's: it must stop at once."""

    code = "fenced"
    status = 409
    message = "Another node answers this question now."


class BodyTooLargeError(InvalidRequestError):
    code = "body_too_large"
    status = 413
    message = "The request is larger than this server accepts."


class MethodNotAllowedError(InvalidRequestError):
    code = "method_not_allowed"
    status = 405
    message = "This address does not take that method."


def to_body(error: AppError) -> dict[str, Any]:
    """A fault as JSON: OpenAI's fields, and how long to wait where waiting helps."""
    fields: dict[str, Any] = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    if error.retry_after_seconds is not None:
        fields["retry_after_seconds"] = error.retry_after_seconds
    return {"error": fields}


def to_response(error: AppError) -> JSONResponse:
    headers = {"Cache-Control": "no-store"}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(to_body(error), status_code=error.status, headers=headers)


def from_validation(error: RequestValidationError) -> AppError:
    """The first fault pydantic found, with the field's path; the value itself is never echoed."""
    first = error.errors()[0]
    path = _path_of(first["loc"], first["type"])
    where = f"`{path}`: " if path else ""
    return InvalidRequestError(f"{where}{first['msg']}.", param=path or None)


def _path_of(loc: tuple[int | str, ...], kind: str) -> str:
    """Where a fault is, as the caller wrote it: pydantic also names the branches of a union."""
    if kind == "json_invalid":
        return ""
    # loc begins with body, query, path or header
    inside = [str(part) for part in loc[1:]]
    if kind != "extra_forbidden":
        inside = [part for part in inside if part not in _BRANCHES and "[" not in part]
    return ".".join(inside)[:_SHOWN_CHARACTERS]


def shown_path(scope: Mapping[str, Any]) -> str:
    """A request's path for a log: percent-encoded, cut, without its query string."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return quote(raw.partition(b"?")[0][:_SHOWN_CHARACTERS], safe="/%:@!$&'()*+,;=~-._")


_BY_STATUS: dict[int, type[AppError]] = {
    401: NotSignedInError,
    403: ForbiddenError,
    404: NotFoundError,
    405: MethodNotAllowedError,
    413: BodyTooLargeError,
}


def install(app: FastAPI) -> None:
    """Make every fault of `app` answer in one shape."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AppError)
        return to_response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return to_response(from_validation(error))

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = to_response(_BY_STATUS.get(error.status_code, InvalidRequestError)())
        # which methods an address takes
        response.headers.update(error.headers or {})
        return response

    async def unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("unexpected fault", path=shown_path(request.scope), exc_info=error)
        return to_response(AppError())

    app.add_exception_handler(AppError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unknown)
