"""A whole decode step in C++: built at first use where there is a compiler, absent elsewhere.

    build.py      compiles the sources beside it into the user's cache folder
    library.py    loads what was built and declares its functions
    reference.py  every operation once more in plain numpy: what the tests hold the C++ against

    baton.cpp     what Python sees
    turn.h        one thread's way through a step: the phases
    llama.h       weights and buffers
    pool.h        threads
    product.h     packed weights and their product;  activations.h  what it multiplies them by
    attention.h   one query head;  vec.h  sixteen floats at a time;  arena.h  memory

Claim: a step reads its weights as fast as the memory gives them, with one core and with two
(docs/performance.md). Results are equal to the bit for any number of threads.
"""
