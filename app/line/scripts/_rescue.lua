-- Shared by the line's operations: nodes that fail, and what becomes of what they had.
-- Runs behind _tickets.lua.

-- A question that brings its node down must not go on to bring down the next, and the next: so
-- many nodes may fetch it (take.lua counts).
local MOST_TRIES = 3

-- What becomes of a question whose node is lost: another node goes on from what is written. Not one
-- token: nobody needs to notice, and it may wait as long as its seat does. In the middle of an
-- answer somebody is reading, so another node must come within a limit.
local function rescue(ticket, gen)
  local key = p .. 'g:' .. gen
  if field(key, 'state') ~= 'assigned' then return end
  local last = redis.call('XREVRANGE', p .. 's:' .. gen, '+', '-', 'COUNT', 1)[1]
  -- entries are flat pairs {k, kind, d, data}; a node's first entries are "reading"
  if last and last[2][2] == 'delta' then redis.call('HSET', key, 'begun', '1') end
  local begun, cancel = is_begun(gen), field(key, 'cancel')
  if cancel ~= '' then return fail(gen, begun and 'node_lost' or CALLED_OFF[cancel] or 'left') end
  if (tonumber(field(key, 'tries')) or 0) >= MOST_TRIES then
    return fail(gen, begun and 'node_lost' or 'unanswerable')
  end
  if begun then
    redis.call('ZADD', p .. 'rescue', int(now + limits.rescue), gen)
    -- time with a node that wrote is no time in the line
    local waited = tonumber(field(key, 'assigned_at')) - tonumber(field(key, 'queued_at'))
    redis.call('HSET', key, 'queued_at', int(now - waited))
  end
  -- fence 0 is nobody's: a node that only seemed dead can append nothing more
  redis.call('HSET', key, 'state', 'queued', 'node', '', 'fence', '0', 'assigned_at', '')
  redis.call('LPUSH', p .. 'j:' .. ticket, gen)
  redis.call('PUBLISH', p .. 'bell:' .. gen, 'queued')
end

-- No node came in time. What was written is kept; the seat's further questions keep its place.
local function give_up_rescue(gen)
  local ticket = field(p .. 'g:' .. gen, 'ticket')
  fail(gen, 'node_lost')
  redis.call('LREM', p .. 'j:' .. ticket, 1, gen)
  if field(p .. 't:' .. ticket, 'state') == 'waiting'
    and redis.call('LLEN', p .. 'j:' .. ticket) == 0 then
    close_ticket(ticket, 'node_lost')
  end
  changed = true
end

-- A node is dead, restarted or gone: forget it and look after its lease.
local function lose_node(node, reason)
  local n = p .. 'n:' .. node
  local ticket, gen = field(n, 'ticket'), field(n, 'generation')
  redis.call('DEL', n, p .. 'inbox:' .. node)
  for _, index in ipairs({'nodes', 'idle', 'owes', 'alive'}) do
    redis.call('ZREM', p .. index, node)
  end
  redis.call('SREM', p .. 'drained', node)
  changed = true
  if ticket == '' then return end
  if gen ~= '' then rescue(ticket, gen) end
  take_back(ticket, reason)
end

-- A node that reports but does not do its part: its lease ends, no new one until it says that
-- nothing runs. A question that it has not fetched is asked elsewhere; one that it does not stop
-- ends here.
local function give_up_on(node)
  local n = p .. 'n:' .. node
  local ticket, gen = field(n, 'ticket'), field(n, 'generation')
  if field(n, 'taken') == field(n, 'fence') then fail(gen, 'node_error') else rescue(ticket, gen) end
  hold_back(node)
  take_back(ticket, 'node_lost')
end

-- A node that reports, but whose answer has stood still for too long. It hears of it with its next
-- report, and is given nothing until it says that nothing runs.
local function look_after(node)
  local n = p .. 'n:' .. node
  local ticket, gen = field(n, 'ticket'), field(n, 'generation')
  local g = p .. 'g:' .. gen
  -- looked up only when it is due, so that an append costs nothing
  local alive_at = math.max(tonumber(field(g, 'wrote_at')) or 0,
    tonumber(redis.call('ZSCORE', p .. 'alive', node)))
  if field(g, 'state') ~= 'assigned' then alive_at = now end
  if now < alive_at + limits.stuck then
    redis.call('ZADD', p .. 'alive', int(alive_at), node)
    return
  end
  rescue(ticket, gen)
  hold_back(node)
  take_back(ticket, 'node_lost')
  changed = true
end

-- A node that gives its question back in order was not felled by it.
local function excuse(node)
  local n = p .. 'n:' .. node
  local gen = field(n, 'generation')
  local g = p .. 'g:' .. gen
  if field(g, 'state') == 'assigned' and field(n, 'taken') == field(n, 'fence') then
    redis.call('HINCRBY', g, 'tries', -1)
  end
end

-- A node that is well again, but could not finish its answer: the answer moves, the node is free.
local function hand_over(node)
  local n = p .. 'n:' .. node
  local ticket = field(n, 'ticket')
  excuse(node)
  rescue(ticket, field(n, 'generation'))
  redis.call('HSET', n, 'done', field(n, 'fence'))
  free_node(node)
  take_back(ticket, 'node_lost')
  changed = true
end
