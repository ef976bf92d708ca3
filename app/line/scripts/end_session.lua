-- A program is through with its session: the lease ends when nothing runs on it, unless a page has it.
-- KEYS[1] pool prefix. ARGV: limits, seat, session. Result: 1 if the seat had that session, else 0.

local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
local had = ticket and field(p .. 't:' .. ticket, 'session') == ARGV[3]
if had then
  local t = p .. 't:' .. ticket
  redis.call('HSET', t, 'session', '')
  if field(t, 'state') == 'granted' and field(t, 'generation') == '' and not is_kept(ticket) then
    end_lease(ticket, 'finished')
  end
end
pump()
return had and 1 or 0
