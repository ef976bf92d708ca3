-- A seat gives up its place, or its lease, and all its unanswered questions.
-- KEYS[1] pool prefix. ARGV: limits, seat. Result: 1 if it had a place or a lease, else 0.

local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
if ticket then
  fail_jobs(ticket, 'left')
  if field(p .. 't:' .. ticket, 'state') == 'waiting' then
    close_ticket(ticket, 'left')
  else
    dismiss(ticket, 'left', 'stopped')
  end
end
pump()
return ticket and 1 or 0
