-- Shared by the line's operations: nodes that are taken out of service in order.
-- Runs behind _turns.lua.

-- Whether an operator has taken this node, with all its slots, out of service.
local function is_ordered_out(node)
  local name = string.match(node, '^(.*)/%d+$') or node
  return redis.call('SISMEMBER', p .. 'drains', name) == 1
end

-- No new lease; the present one ends at once when it rests, else after its answer.
local function take_out(node)
  if redis.call('SADD', p .. 'drained', node) == 0 then return end
  changed = true
  local state, ticket = unpack(redis.call('HMGET', p .. 'n:' .. node, 'state', 'ticket'))
  if state == 'idle' then
    redis.call('ZREM', p .. 'idle', node)
    redis.call('HSET', p .. 'n:' .. node, 'state', 'drained')
  elseif state == 'leased' then
    local t = p .. 't:' .. ticket
    if field(t, 'generation') == '' then return end_lease(ticket, 'drained') end
    -- a lease that was called off already ends sooner
    if redis.call('ZSCORE', p .. 'ending', ticket) == 'inf' then return end
    redis.call('HSET', t, 'ending', 'drained')
    redis.call('ZREM', p .. 'leases', ticket)
    redis.call('ZREM', p .. 'ending', ticket)
    redis.call('ZADD', p .. 'draining', int(now + limits.cap), ticket)
  end
end

-- In service again; a lease that was to end goes on.
local function put_back(node)
  if redis.call('SREM', p .. 'drained', node) == 0 then return end
  changed = true
  local state, ticket = unpack(redis.call('HMGET', p .. 'n:' .. node, 'state', 'ticket'))
  if state == 'drained' then
    free_node(node)
  elseif state == 'leased' and redis.call('ZREM', p .. 'draining', ticket) == 1 then
    redis.call('ZADD', p .. 'leases', field(p .. 't:' .. ticket, 'slice_until'), ticket)
    redis.call('HSET', p .. 't:' .. ticket, 'ending', '')
  end
end

-- An answer that outlasts the cap goes on at another node; where there is none, it is cut there.
local function end_drained()
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', p .. 'draining', '-inf', int(now), 'LIMIT', 0,
    100)) do
    local node, gen = unpack(redis.call('HMGET', p .. 't:' .. ticket, 'node', 'generation'))
    if serving() > 0 then
      excuse(node)
      rescue(ticket, gen)
      hold_back(node)
      take_back(ticket, 'drained')
      changed = true
    else
      mark_ending(ticket, 'drained', '+inf')
      if stop_running(ticket, 'slice_ended') then settle(node) end
    end
  end
end
