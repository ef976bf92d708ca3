-- A node says that nothing runs any more. The next question of the seat, a rest, or the next seat.
-- KEYS[1] pool prefix. ARGV: limits, node, boot, generation, fence, "1" if the answer goes on
-- elsewhere (or here, under a new fence).
-- Result: 1, or 0 when this was not (or no longer) the node's work.

local node, gen = ARGV[2], ARGV[4]
local n = p .. 'n:' .. node
local ours = field(n, 'boot') == ARGV[3] and field(n, 'fence') == ARGV[5]
local result = 0
if ours and field(n, 'state') == 'leased' and field(n, 'generation') == gen then
  if ARGV[6] == '1' and field(p .. 'g:' .. gen, 'state') == 'assigned' then
    hand_over(node)
  else
    fail(gen, 'node_error') -- only if the node ended without its last event
    settle(node)
  end
  result = 1
elseif ours and field(n, 'state') == 'stop' then
  free_node(node)
  result = 1
end
pump()
return result
