"""The node process: beside the GPU, dialling out to the store, serving one generation at a time."""
