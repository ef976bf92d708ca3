-- What a seat has in this pool. Changes nothing.
-- KEYS[1] pool prefix. ARGV: limits, seat.
-- Result: {} | {state, generation, node, node info, slice left ms, idle left ms}; '' is "none".

local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
if not ticket then return {} end
local t = p .. 't:' .. ticket
local gen, node = field(t, 'generation'), field(t, 'node')
if field(t, 'state') == 'waiting' then
  return {'waiting', redis.call('LINDEX', p .. 'j:' .. ticket, 0) or '', '', '', '', ''}
end
local slice_left, idle_left = '', ''
if waiting_total() > 0 then
  slice_left = int(math.max(0, tonumber(field(t, 'slice_until')) - now))
end
local rest = redis.call('ZSCORE', p .. 'rest', ticket)
if rest then idle_left = int(math.max(0, tonumber(rest) - now)) end
return {gen == '' and 'holding' or 'busy', gen, node, field(p .. 'n:' .. node, 'info'), slice_left,
  idle_left}
