-- Put one question into the line, or behind its seat's own, or straight onto its seat's lease.
-- KEYS[1] pool prefix. ARGV: limits, generation, seat, tier, hold (1 | 0), payload,
-- grace of this caller (ms), max_waiting, max_questions, session ('': none, "end": over with this),
-- address ('': not counted), most waiting tickets of one address.
-- Result: {"ok", shared, place} | {"foreign"} | {"empty"} | {"questions"} | {"full", shared}
-- | {"address", shared}

local gen, seat, tier, hold, payload = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local grace, max_waiting, max_questions = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])

-- the seat is here: it must not be reaped by this very call
local ticket = redis.call('HGET', p .. 'seat', seat)
if ticket then
  local longest = math.max(tonumber(grace), tonumber(field(p .. 't:' .. ticket, 'grace')))
  redis.call('ZADD', p .. 'seen', 'XX', 'GT', int(now + longest), ticket)
  redis.call('HSET', p .. 't:' .. ticket, 'hidden', '0')
  answer_call(ticket)
end
pump()

local owner = redis.call('HGET', p .. 'g:' .. gen, 'seat')
if owner then
  if owner ~= seat then return {'foreign'} end
  return {'ok', shared(), place(gen, is_waited_for())}
end
if serving() < 1 then return {'empty'} end

ticket = redis.call('HGET', p .. 'seat', seat)
if ticket then
  local t = p .. 't:' .. ticket
  local running = field(t, 'generation')
  local questions = redis.call('LLEN', p .. 'j:' .. ticket) + (running ~= '' and 1 or 0)
  if questions >= max_questions then return {'questions'} end
  if hold == '1' then redis.call('HSET', t, 'hold', '1') end
  if tonumber(grace) > tonumber(field(t, 'grace')) then redis.call('HSET', t, 'grace', grace) end
else
  if waiting_total() >= max_waiting then return {'full', shared()} end
  local address = ARGV[11]
  if address ~= '' and redis.call('SCARD', p .. 'from:' .. address) >= tonumber(ARGV[12]) then
    return {'address', shared()}
  end
  ticket = open_ticket(seat, tier, hold, grace, address)
end

local session = ARGV[10]
if session ~= '' then
  redis.call('HSET', p .. 't:' .. ticket, 'session', session ~= 'end' and session or '')
end
if tier == 'api' then redis.call('HSET', p .. 't:' .. ticket, 'program', '1') end
redis.call('HSET', p .. 'g:' .. gen, 'state', 'queued', 'ticket', ticket, 'seat', seat, 'hold', hold,
  'session', session,
  'payload', payload, 'fence', '0', 'node', '', 'queued_at', int(now))
local t = p .. 't:' .. ticket
if field(t, 'state') == 'granted' and field(t, 'generation') == '' then
  assign(ticket, field(t, 'node'), gen)
else
  redis.call('RPUSH', p .. 'j:' .. ticket, gen)
end
pump()
return {'ok', shared(), place(gen, is_waited_for())}
