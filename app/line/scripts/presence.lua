-- The page says whether it is in front. Only a person has one: a program that waits is always there.
-- KEYS[1] pool prefix. ARGV: limits, seat, hidden (1 | 0).
-- Result: 1 if the seat had a place or a lease, else 0.

local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
if ticket then
  local t = p .. 't:' .. ticket
  local is_hidden = ARGV[3] == '1' and field(t, 'program') ~= '1'
  redis.call('HSET', t, 'hidden', is_hidden and '1' or '0')
  -- whoever speaks is here: this very call must not reap it
  redis.call('ZADD', p .. 'seen', 'XX', 'GT', int(now + tonumber(field(t, 'grace'))), ticket)
  if not is_hidden then answer_call(ticket) end
end
pump()
return ticket and 1 or 0
