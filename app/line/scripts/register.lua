-- A node comes (back). It is granted only after its first heartbeat says that nothing runs.
-- KEYS[1] pool prefix. ARGV: limits, node, boot, info (JSON), card. Result: 1
-- The same boot again only refreshes; another boot means that the old lease was lost.

local node, boot, info, card = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local n = p .. 'n:' .. node
local known = redis.call('HGET', n, 'boot')
if known and known ~= boot then lose_node(node, 'node_lost') end
redis.call('HSET', n, 'boot', boot, 'info', info)
redis.call('SET', p .. 'card', card)
redis.call('ZADD', p .. 'nodes', int(now + limits.dead), node)
if known ~= boot then
  if is_ordered_out(node) then redis.call('SADD', p .. 'drained', node) end
  hold_back(node)
  changed = true
end
pump()
return 1
