-- Ask one question at a node that is idle, without standing in line: given up as soon as somebody
-- waits there (_pump.lua). A borrowed lease is not kept after its answer, nor moved to another node.
-- KEYS[1] pool prefix. ARGV: limits, generation, seat, tier, payload, grace of this caller (ms).
-- Result: {"ok", shared, place} | {"foreign"} | {"empty"} | {"questions"} | {"busy"}

local gen, seat, tier, payload, grace = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
pump()

local owner = redis.call('HGET', p .. 'g:' .. gen, 'seat')
if owner then
  if owner ~= seat then return {'foreign'} end
  return {'ok', shared(), place(gen, is_waited_for())}
end
if serving() < 1 then return {'empty'} end
if redis.call('HGET', p .. 'seat', seat) then return {'questions'} end
if redis.call('ZCARD', p .. 'idle') == 0 or waiting_total() > 0 then return {'busy'} end

local ticket = open_ticket(seat, tier, '0', grace, '')
redis.call('HSET', p .. 't:' .. ticket, 'borrowed', '1')
redis.call('HSET', p .. 'g:' .. gen, 'state', 'queued', 'ticket', ticket, 'seat', seat, 'hold', '0',
  'session', '', 'payload', payload, 'fence', '0', 'node', '', 'queued_at', int(now))
redis.call('RPUSH', p .. 'j:' .. ticket, gen)
pump()
if field(p .. 't:' .. ticket, 'state') == 'waiting' then
  -- what looked idle was silent: a race does not wait
  fail_jobs(ticket, 'wanted')
  close_ticket(ticket, 'wanted')
  return {'busy'}
end
return {'ok', shared(), place(gen, is_waited_for())}
