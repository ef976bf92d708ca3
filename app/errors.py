"""Every fault a caller can meet: a code, an HTTP status, a sentence for a person.

Rooms raise; `app/main.py` installs the one border where these become HTTP, and `chat/turn.py` the
one place where they become a turn's last event.
"""

from __future__ import annotations


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


class PoolEmptyError(AppError):
    code = "no_node"
    status = 503
    message = "No node serves this model right now. Try again in a minute."


class SeatElsewhereError(TooManyRequestsError):
    code = "seat_elsewhere"
    message = "You already have a place in another line. Leave it first."


class TooManyQuestionsError(TooManyRequestsError):
    code = "too_many_questions"
    message = "You have several questions waiting already. Let one be answered first."


class GenerationNotFoundError(NotFoundError):
    code = "turn_not_found"
    message = "This answer is no longer in memory. Reload the conversation."


class FencedError(AppError):
    """A node wrote with a fence that is no longer the generation's: it must stop at once."""

    code = "fenced"
    status = 409
    message = "Another node answers this question now."
