"""Greedy answers, computed once with transformers in float32: of SmolLM2-135M-Instruct (Q4_1) and,
at the end, of Gemma 3 270M (base, Q4_K_M).

COUNT has no near ties (smallest gap between the two best logits 1.96), so any sound arithmetic
gives it. FIB and CAP begin with near ties (0.07 and 0.08): they tell how fine a level is.
"""

from __future__ import annotations

from typing import NamedTuple


class Reference(NamedTuple):
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


SPACE, COMMA, DIGIT_0 = 216, 28, 32


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split())


def counting(first: int, last: int) -> tuple[int, ...]:
    """Ids of `first, first + 1, ..., last,`: digits one by one, a comma at the end."""
    ids: list[int] = []
    for number in range(first, last + 1):
        if ids:
            ids.append(SPACE)
        ids += [DIGIT_0 + int(digit) for digit in str(number)]
        ids.append(COMMA)
    return tuple(ids)


COUNT = Reference(counting(1, 16), (SPACE, *counting(17, 26)))
COUNT_TEXT = " 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,"

# "def fibonacci(n):\n" without a chat template
FIB = Reference(
    _ids("1604 3987 46477 24 94 727 198"),
    _ids(
        "198 1604 3987 46477 24 94 727 472 585 304 10204 216 33 42 448 1003 304 472 1745 42 448"
        " 1003 3987 46477 24 94 731 216 33 25 1232 3987 46477 24 94 731 216 34 25 198"
    ),
)

# "What is the capital of France?" in the model's chat template, default system line included;
# 2 is <|im_end|>
CAP = Reference(
    _ids(
        "1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2"
        " 198 1 4093 198 1780 314 260 3575 282 4649 47 2 198 1 520 9531 198"
    ),
    _ids("504 3575 282 4649 314 7042 30 2"),
)
CAP_TEXT = "The capital of France is Paris."

# Gemma's, with its beginning token. FRANCE has gaps below 0.02 at 11, 15, 25 and 31, LILY of 0.06 at
# 0 and 3; the smallest of GEMMA_FIB is 0.22, so any sound arithmetic gives it.
FRANCE = Reference(
    _ids("2 818 5279 529 7001 563"),
    _ids(
        "506 5279 529 506 2891 529 7001 236761 1030 563 506 7488 3207 528 7001 532 506 1855 7488"
        " 3207 528 3879 236761 1030 563 5628 528 506 6029 529 506 2891 532 563 506 5279 529 506"
        " 4128 529"
    ),
)
LILY = Reference(
    _ids("2 14946 3324 496 990 236764 993 691 496"),
    _ids(
        "2268 3953 7489 60708 236761 2625 691 496 1401 6538 3953 236764 532 1304 9312 531 1441 607"
        " 1116 4690 236761 3656 1719 236764 60708 691 5662 607 1116 4690 236764 532 1304 691 1401"
        " 9775 531 1441 607 1116"
    ),
)
GEMMA_FIB = Reference(
    _ids("2 2063 10779 78113 236769 236749 1473 107"),
    _ids(
        "140 584 538 1251 236743 236771 236787 107 144 2060 236743 236771 107 140 36208 538 1251"
        " 236743 236770 236787 107 144 2060 236743 236770 107 140 36208 538 1251 236743 236778"
        " 236787 107 144 2060 236743 236778 107 140"
    ),
)
