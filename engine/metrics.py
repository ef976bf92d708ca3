"""The one definition of every speed figure that Baton shows, in the page, the API and the bench.

live     tokens in the last 1.0 s / 1.0 s; in the first second / elapsed, shown from 0.25 s on
peak     the largest full 1.0 s window of the answer; a shorter answer's peak is its average;
         never below the average
average  (completion tokens - tokens of the first step) / (last token - first token)
e2e      completion tokens / (last token - the request reached the node)

Tokens are counted, never chunks. Times are milliseconds on one clock.
"""
