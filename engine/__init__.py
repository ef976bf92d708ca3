"""The batch-1 engine: one request at a time, as fast as the machine can read its weights.

The way through: `types` (what goes in and out) -> `engine` (the loop) -> `models/<architecture>`
-> `layers` -> `kernels`. Weights come in through `weights`, text through `tokenizer` and
`chat_template`. `types`, `metrics`, `tokenizer`, `chat_template` and `parsers` never import torch,
so the web process may use them.

Letters for shapes, the same in every file:
    B batch (always 1)   T positions in this pass   S positions in the cache
    D model width        H query heads              K key/value heads        E head width
    F feed-forward width V vocabulary               G quantisation group
"""
