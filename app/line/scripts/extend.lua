-- A holder asks for more time: a slice that begins now, and the idle limit anew.
-- KEYS[1] pool prefix. ARGV: limits, seat, most extensions of one lease while others wait.
-- Result: {"ok"} | {"none"} (no lease, or it is ending) | {"waiting", how many wait}

pump()
local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
local t = ticket and p .. 't:' .. ticket
if not ticket or field(t, 'state') ~= 'granted' or field(t, 'ending') ~= '' then return {'none'} end
local waiting = waiting_total()
if waiting > 0 then
  if (tonumber(field(t, 'extended')) or 0) >= tonumber(ARGV[3]) then return {'waiting', waiting} end
  redis.call('HINCRBY', t, 'extended', 1)
end
local slice_until = int(now + limits.slice)
redis.call('HSET', t, 'slice_until', slice_until)
redis.call('ZADD', p .. 'leases', 'XX', slice_until, ticket)
redis.call('ZADD', p .. 'rest', 'XX', int(now + limits.idle), ticket)
redis.call('PUBLISH', p .. 'bell', '')
return {'ok'}
