"""A generation's stream: written on the node, read on the web side, resumable by any replica."""
