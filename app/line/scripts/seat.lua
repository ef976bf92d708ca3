-- What a seat has in this pool. Changes nothing.
-- KEYS[1] pool prefix. ARGV: limits, seat, most extensions of one lease while others wait.
-- Result: {} | {state, generation, node, node info, slice left ms (only while others wait),
-- idle left ms, slice left ms should others come, "1" if the lease may be extended, else "0"};
-- '' is "none".

local ticket = redis.call('HGET', p .. 'seat', ARGV[2])
if not ticket then return {} end
local t = p .. 't:' .. ticket
local gen, node = field(t, 'generation'), field(t, 'node')
if field(t, 'state') == 'waiting' then
  return {'waiting', redis.call('LINDEX', p .. 'j:' .. ticket, 0) or '', '', '', '', '', '', '0'}
end
local waits = waiting_total() > 0
local certain = int(math.max(0, tonumber(field(t, 'slice_until')) - now))
local idle_left = ''
local rest = redis.call('ZSCORE', p .. 'rest', ticket)
if rest then idle_left = int(math.max(0, tonumber(rest) - now)) end
local may_extend = field(t, 'ending') == ''
  and (not waits or (tonumber(field(t, 'extended')) or 0) < tonumber(ARGV[3]))
return {gen == '' and 'holding' or 'busy', gen, node, field(p .. 'n:' .. node, 'info'),
  waits and certain or '', idle_left, certain, may_extend and '1' or '0'}
