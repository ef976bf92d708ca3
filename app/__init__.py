"""Baton's web side and node process. Data flows one way; each room calls only the next.

main       create_app: where the parts are wired          settings  every tunable, read once
pages      one function per HTML page                     errors    one sentence per fault
chat       routes -> turn: the story of one question      accounts  who is asking
line       who holds which node, who is next (Lua)        relay     a generation's stream
node       the process beside the GPU                     store     Redis: client, keys, bell
embed      the widget and its origins                     admin, ops  nodes, health, metrics
"""
