-- Take a node out of service, or back into it.
-- KEYS[1] pool prefix. ARGV: limits, node, boot ('': an operator means all slots of the node, and the
-- word counts until it is taken back, over restarts too; else this start of one slot is about to go),
-- 1 (out) | 0 (back). Result: how many slots it found.

local name, boot, move = ARGV[2], ARGV[3], ARGV[4] == '1' and take_out or put_back
local found = 0
if boot == '' then
  redis.call(ARGV[4] == '1' and 'SADD' or 'SREM', p .. 'drains', name)
  for _, node in ipairs(redis.call('ZRANGE', p .. 'nodes', 0, -1)) do
    if node == name or string.match(node, '^(.*)/%d+$') == name then
      move(node)
      found = found + 1
    end
  end
elseif field(p .. 'n:' .. name, 'boot') == boot then
  move(name)
  found = 1
end
pump()
return found
