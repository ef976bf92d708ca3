-- Call off one question. Waiting: it ends here. On a node: the node is told and ends it.
-- KEYS[1] pool prefix. ARGV: limits, generation, reason (stopped | gone | slice_ended | admin | revoked).
-- Result: the state it was in (queued | assigned | ended), or nil when unknown.

local gen, reason = ARGV[2], ARGV[3]
local g = p .. 'g:' .. gen
local state, ticket = field(g, 'state'), field(g, 'ticket')
-- a program that hangs up, or whose key is revoked, is gone, and so is what it kept the node for
local is_gone = reason == 'gone' or reason == 'revoked'
local session = is_gone and state ~= 'ended' and field(g, 'session') or ''
if session ~= '' and field(p .. 't:' .. ticket, 'session') == session then
  redis.call('HSET', p .. 't:' .. ticket, 'session', '')
end
if state == 'queued' then
  local code = CALLED_OFF[reason]
  -- its asker knows that it never began: whoever stops or hangs up has simply left
  fail(gen, (code == 'removed' or code == 'revoked') and code or 'left')
  redis.call('LREM', p .. 'j:' .. ticket, 1, gen)
  changed = true
  if field(p .. 't:' .. ticket, 'state') == 'waiting'
    and redis.call('LLEN', p .. 'j:' .. ticket) == 0 then
    close_ticket(ticket, 'left')
  end
elseif state == 'assigned' then
  if stop_running(ticket, reason) then settle(field(p .. 't:' .. ticket, 'node')) end
end
pump()
return state ~= '' and state or false
