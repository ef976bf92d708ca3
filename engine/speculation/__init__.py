"""Speculation: guess tokens, check them in one pass, keep those that would have come anyway.

Lossless by construction: a token is always chosen by `engine/sampling.py` from its own row's
logits, rows do not see each other, and a draft is kept only where it is what was chosen. So the
text is the plain one, token for token, at any temperature; only the number of passes changes.

    drafter.py   what guesses: the protocol        lookup.py  from the text itself
    pace.py      when, and how many tokens          model.py   from a smaller model
    director.py  one answer's story: who guesses, what came of it, what it took
"""
