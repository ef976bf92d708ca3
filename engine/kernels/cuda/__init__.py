"""One decode step on a CUDA device, as Triton kernels; imported only where such a device is.

    choice.py     logits -> token (exactly the rule of engine/sampling.py) -> its embedding
    products.py   matrix times vector, with what stands before and behind it
    attention.py  rotation, cache append, attention split over the positions, combination

Programmatic dependent launch (`PDL`): a kernel lets the next one start as soon as all of its own
programs have started; that one loads its weights and only then waits. Before its wait a kernel may
read nothing but weights, since several predecessors may still run. One exception: the product in
front of `attend` starts it only after its own wait (HOLD), so `attend` may read early what
was complete before that product: the position, and keys and values of earlier steps.

Where no GPU is, Triton's interpreter runs the same kernels (TRITON_INTERPRET=1, PDL off).
"""
