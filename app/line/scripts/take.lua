-- What a node should run now. Asking again gives the same answer, so a lost reply does no harm.
-- KEYS[1] pool prefix. ARGV: limits, node, boot.
-- Result: {generation, fence, payload, seat, queued ms}, or {} for nothing.

local n = p .. 'n:' .. ARGV[2]
if field(n, 'boot') ~= ARGV[3] then return {} end
local gen, fence = field(n, 'generation'), field(n, 'fence')
if gen == '' then return {} end
local g = p .. 'g:' .. gen
if field(g, 'state') ~= 'assigned' then return {} end
if field(n, 'taken') ~= fence then
  redis.call('HSET', n, 'taken', fence)
  redis.call('HINCRBY', g, 'tries', 1)
  redis.call('ZREM', p .. 'owes', ARGV[2])
end
return {gen, fence, field(g, 'payload'), field(g, 'seat'),
  int(tonumber(field(g, 'assigned_at')) - tonumber(field(g, 'queued_at')))}
