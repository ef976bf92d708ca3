"""Redis or Valkey: the client, every key name, script loading, the bell, the embedded server.

`line` and `relay` keep their state here; nobody else talks to the store.
"""
