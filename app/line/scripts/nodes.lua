-- All nodes of a pool, for its operator. Changes nothing.
-- KEYS[1] pool prefix. ARGV: limits. Result: {names that an operator took out of service, node..};
-- a node: {id, info, state, running generation, drained (1 | 0)}

local result = {redis.call('SMEMBERS', p .. 'drains')}
for _, node in ipairs(redis.call('ZRANGE', p .. 'nodes', 0, -1)) do
  local n = redis.call('HMGET', p .. 'n:' .. node, 'info', 'state', 'generation')
  result[#result + 1] = {node, n[1], n[2], n[3],
    redis.call('SISMEMBER', p .. 'drained', node)}
end
return result
