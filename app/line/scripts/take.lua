-- What a node should run now. Asking again gives the same answer, so a lost reply does no harm.
-- KEYS[1] pool prefix. ARGV: limits, node, boot.
-- Result: {generation, fence, payload, seat, queued ms, entries already in the stream,
-- "1" if all that is written there comes from nodes with this one's numerics label, else "0"},
-- or {} for nothing.

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
  redis.call('ZADD', p .. 'alive', int(now), ARGV[2])
  local numerics = cjson.decode(field(n, 'info')).numerics
  if not is_begun(gen) then
    redis.call('HSET', g, 'numerics', numerics)
  elseif field(g, 'numerics') ~= numerics then
    redis.call('HSET', g, 'numerics', '')
  end
end
return {gen, fence, field(g, 'payload'), field(g, 'seat'),
  int(tonumber(field(g, 'assigned_at')) - tonumber(field(g, 'queued_at'))),
  field(g, 'length'), field(g, 'numerics') ~= '' and '1' or '0'}
