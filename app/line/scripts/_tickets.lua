-- Shared by the line's operations: tickets, leases, nodes and how each of them ends.
-- Runs behind app/store/scripts/generation.lua. ARGV[1] is always the caller's limits as JSON
-- (milliseconds): slice, idle, grace, cap, dead, stop, rescue, stuck, claim. Key table: app/store/keys.py.

-- What the web side wrote down counts, whoever runs the script: a node may be set up otherwise.
local written = redis.call('GET', p .. 'limits')
local limits = cjson.decode(written or ARGV[1])
if written and written ~= ARGV[1] then
  -- an older web process knew fewer of them
  for name, ms in pairs(cjson.decode(ARGV[1])) do limits[name] = limits[name] or ms end
end
local now = now_ms()
-- set when somebody else's place changed; pump() then rings the line's bell once
local changed = false

-- Texts for people when the line itself ends a question: code -> {sentence, trying again helps}.
local ENDINGS = {
  left = {'You left the line before this question was answered.', false},
  away = {'Nobody was watching any more, so this question left the line. Ask again to rejoin.', true},
  unclaimed = {'Your turn came twice, and nobody was here to take it. Ask again to rejoin.', true},
  gone = {'Nobody was watching any more, so the answer was not started.', true},
  slice_ended = {'Your time on the node was over before this answer began. Ask again to rejoin.', true},
  removed = {'An administrator took this question out of the line.', false},
  wanted = {'Somebody waits for the node that this race had borrowed.', false},
  revoked = {'The API key that asked this question was revoked.', false},
  node_lost = {'The node that was answering has failed. What was written is kept; ask again to go on.', true},
  unanswerable = {'Every node that began on this question failed before its first word. Ask it differently.', false},
  node_error = {'The node stopped without finishing this answer. Ask again to go on.', true},
}
-- The same where a part of the answer is written already, and it waits for another node.
local BEGUN = {
  left = 'You stopped this answer while it waited for another node. What was written is kept.',
  away = 'Nobody was watching any more, so this answer was not continued. What was written is kept.',
  removed = 'An administrator stopped this answer. What was written is kept.',
  revoked = 'The API key that asked this question was revoked. What was written is kept.',
  slice_ended = 'Your time was over before another node went on with this answer. What was written is kept.',
}
BEGUN.gone = BEGUN.away
-- why a question was called off -> what its asker reads when no node had begun on it
local CALLED_OFF = {stopped = 'left', gone = 'gone', slice_ended = 'slice_ended', admin = 'removed',
  revoked = 'revoked', wanted = 'wanted'}

local function field(key, name)
  return redis.call('HGET', key, name) or ''
end

local function is_begun(gen)
  return field(p .. 'g:' .. gen, 'begun') == '1'
end

local function fail(gen, code)
  local ending = ENDINGS[code]
  local message = is_begun(gen) and BEGUN[code] or ending[1]
  redis.call('ZREM', p .. 'rescue', gen)
  return end_generation(gen, 'failed',
    cjson.encode({code = code, message = message, retry = ending[2]}))
end

-- Larger than every fence before it, even when the store lost its memory or its clock went back:
-- the key keeps the last fence and is raised to whatever a node reports.
local function new_fence()
  local last = tonumber(redis.call('GET', p .. 'fence') or '0')
  local fence = int(math.max(last, now_us() - 1) + 1)
  redis.call('SET', p .. 'fence', fence)
  return fence
end

-- The list is only a doorbell: what to do stands in the node's hash, so a few entries are enough.
local function knock(node, word)
  local key = p .. 'inbox:' .. node
  redis.call('RPUSH', key, word)
  redis.call('LTRIM', key, -4, -1)
  redis.call('PEXPIRE', key, 60000)
end

-- Put a ticket at the tail of a lane.
local function stand(ticket, lane)
  local key = p .. 'w:' .. lane
  if lane ~= 'r' and redis.call('ZCARD', key) == 0 then
    -- a tier that was empty earns no credit for that time
    local at = tonumber(field(p .. 'pass', 'now')) or 0
    local own = tonumber(field(p .. 'pass', lane)) or 0
    if own < at then redis.call('HSET', p .. 'pass', lane, int(at)) end
  end
  local seq = redis.call('INCR', p .. 'seq')
  redis.call('ZADD', key, seq, ticket)
  redis.call('HSET', p .. 't:' .. ticket, 'lane', lane, 'seq', seq, 'state', 'waiting')
  local address = field(p .. 't:' .. ticket, 'address')
  if address ~= '' then redis.call('SADD', p .. 'from:' .. address, ticket) end
  local grace = tonumber(field(p .. 't:' .. ticket, 'grace'))
  -- NX: only watching extends it
  redis.call('ZADD', p .. 'seen', 'NX', int(now + grace), ticket)
  changed = true
end

-- The ticket no longer waits, so it no longer counts among those of its address.
local function leave_address(ticket)
  local address = field(p .. 't:' .. ticket, 'address')
  if address ~= '' then redis.call('SREM', p .. 'from:' .. address, ticket) end
end

local function open_ticket(seat, tier, hold, grace, address)
  -- time and counter: unique in the pool, also after the store lost its memory
  local ticket = int(now_us()) .. '-' .. redis.call('INCR', p .. 'seq')
  redis.call('HSET', p .. 't:' .. ticket, 'seat', seat, 'tier', tier, 'hold', hold, 'grace', grace,
    'address', address, 'opened_at', int(now), 'claimed_at', int(now))
  redis.call('HSET', p .. 'seat', seat, ticket)
  stand(ticket, tier)
  return ticket
end

-- End a ticket's life, wherever it stands. Its questions are the caller's business.
local function close_ticket(ticket, reason)
  local key = p .. 't:' .. ticket
  local seat, lane = field(key, 'seat'), field(key, 'lane')
  redis.call('ZREM', p .. 'w:' .. lane, ticket)
  leave_address(ticket)
  for _, index in ipairs({'seen', 'claim', 'rest', 'leases', 'ending', 'draining', 'borrowed'}) do
    redis.call('ZREM', p .. index, ticket)
  end
  redis.call('DEL', p .. 'j:' .. ticket)
  redis.call('HSET', key, 'state', 'ended', 'reason', reason, 'node', '', 'generation', '')
  redis.call('PEXPIRE', key, 600000)
  if field(p .. 'seat', seat) == ticket then redis.call('HDEL', p .. 'seat', seat) end
  changed = true
end

local function fail_jobs(ticket, code)
  for _, gen in ipairs(redis.call('LRANGE', p .. 'j:' .. ticket, 0, -1)) do fail(gen, code) end
  redis.call('DEL', p .. 'j:' .. ticket)
end

-- The next question of a ticket that still wants an answer; false: none.
local function next_job(ticket)
  while true do
    local gen = redis.call('LPOP', p .. 'j:' .. ticket)
    if not gen then return false end
    if field(p .. 'g:' .. gen, 'state') == 'queued' then return gen end
  end
end

-- Who has waited longest goes first, but one slot of every node before the second of any: those who
-- share a node share its speed. Slots are named <node>, <node>/2, <node>/3...
local function idle_rank(node)
  local slot = tonumber(string.match(node, '/(%d+)$') or '1')
  return int((slot - 1) * 1e13 + now)
end

-- Nodes (each slot counted) that take work.
local function serving()
  return redis.call('ZCARD', p .. 'nodes') - redis.call('SCARD', p .. 'drained')
end

local function free_node(node)
  local is_drained = redis.call('SISMEMBER', p .. 'drained', node) == 1
  redis.call('HSET', p .. 'n:' .. node, 'state', is_drained and 'drained' or 'idle', 'ticket', '',
    'generation', '')
  redis.call('ZREM', p .. 'owes', node)
  redis.call('ZREM', p .. 'alive', node)
  if not is_drained then redis.call('ZADD', p .. 'idle', idle_rank(node), node) end
end

-- The node has no lease and must first say that nothing runs on it.
local function hold_back(node)
  redis.call('HSET', p .. 'n:' .. node, 'state', 'stop', 'ticket', '', 'generation', '',
    'stop_since', int(now))
  for _, index in ipairs({'owes', 'alive', 'idle'}) do redis.call('ZREM', p .. index, node) end
end

-- Give one question to the node of the ticket's lease. Every assignment has its own fence. With it
-- goes the length of the stream: the node continues what lies there, and nobody else may append.
local function assign(ticket, node, gen)
  local fence = new_fence()
  redis.call('HSET', p .. 'n:' .. node, 'state', 'leased', 'ticket', ticket, 'fence', fence,
    'generation', gen)
  redis.call('HSET', p .. 't:' .. ticket, 'generation', gen, 'fence', fence)
  redis.call('HSET', p .. 'g:' .. gen, 'state', 'assigned', 'node', node, 'fence', fence,
    'assigned_at', int(now), 'length', redis.call('XLEN', p .. 's:' .. gen))
  redis.call('ZREM', p .. 'rescue', gen)
  redis.call('ZREM', p .. 'rest', ticket)
  local grace = tonumber(field(p .. 't:' .. ticket, 'grace'))
  redis.call('ZADD', p .. 'seen', 'NX', int(now + grace), ticket)
  redis.call('ZADD', p .. 'owes', int(now + limits.stop), node)
  changed = true
  knock(node, 'job')
  redis.call('PUBLISH', p .. 'bell:' .. gen, 'assigned')
end

-- End a lease on whose node nothing runs. Questions left over go to the tail, as a new ticket.
local function end_lease(ticket, reason)
  local key = p .. 't:' .. ticket
  local node, seat = field(key, 'node'), field(key, 'seat')
  local jobs = redis.call('LRANGE', p .. 'j:' .. ticket, 0, -1)
  redis.call('LPUSH', p .. 'turns', int(now - tonumber(field(key, 'granted_at'))))
  redis.call('LTRIM', p .. 'turns', 0, 19)
  close_ticket(ticket, reason)
  free_node(node)
  if #jobs > 0 then
    local new = open_ticket(seat, field(key, 'tier'), field(key, 'hold'), field(key, 'grace'),
      field(key, 'address'))
    for _, name in ipairs({'hidden', 'program', 'session'}) do
      redis.call('HSET', p .. 't:' .. new, name, field(key, name))
    end
    for _, gen in ipairs(jobs) do
      redis.call('RPUSH', p .. 'j:' .. new, gen)
      redis.call('HSET', p .. 'g:' .. gen, 'ticket', new)
    end
  end
end

-- A ticket whose node goes, or is lost: to lane r with its open questions, or over.
local function take_back(ticket, reason)
  local t = p .. 't:' .. ticket
  if field(t, 'borrowed') == '1' then fail_jobs(ticket, 'node_lost') end
  if redis.call('LLEN', p .. 'j:' .. ticket) == 0 then return close_ticket(ticket, reason) end
  for _, index in ipairs({'rest', 'leases', 'ending', 'draining'}) do
    redis.call('ZREM', p .. index, ticket)
  end
  redis.call('HSET', t, 'node', '', 'generation', '', 'fence', '', 'ending', '', 'granted_at', '',
    'slice_until', '')
  stand(ticket, 'r')
end

-- A lease that outlives its answers: somebody at a page has it, or a session of a program.
local function is_kept(ticket)
  return field(p .. 't:' .. ticket, 'hold') == '1' or field(p .. 't:' .. ticket, 'session') ~= ''
end

-- Nothing runs on the leased node any more and its question has ended: what comes next?
local function settle(node)
  local n = p .. 'n:' .. node
  local ticket = field(n, 'ticket')
  local t = p .. 't:' .. ticket
  redis.call('HSET', n, 'generation', '', 'done', field(n, 'fence'))
  redis.call('ZREM', p .. 'owes', node)
  redis.call('ZREM', p .. 'alive', node)
  redis.call('HSET', t, 'generation', '')
  local ending = field(t, 'ending')
  if ending == 'drained' then
    -- not the seat's doing: it loses its node, not its turn
    free_node(node)
    return take_back(ticket, ending)
  end
  if ending ~= '' then return end_lease(ticket, ending) end
  local gen = next_job(ticket)
  if gen then return assign(ticket, node, gen) end
  if not is_kept(ticket) then return end_lease(ticket, 'finished') end
  redis.call('ZREM', p .. 'seen', ticket)
  redis.call('ZADD', p .. 'rest', int(now + limits.idle), ticket)
  changed = true
end

-- The lease will end as soon as its answer has; at: when that answer is called off.
local function mark_ending(ticket, reason, at)
  redis.call('HSET', p .. 't:' .. ticket, 'ending', reason)
  redis.call('ZREM', p .. 'leases', ticket)
  redis.call('ZREM', p .. 'draining', ticket)
  redis.call('ZADD', p .. 'ending', at, ticket)
  changed = true
end

-- Call off what a lease's node runs. True: nothing runs there (it had not fetched the question).
local function stop_running(ticket, reason)
  local node, gen = field(p .. 't:' .. ticket, 'node'), field(p .. 't:' .. ticket, 'generation')
  if gen == '' then return true end
  local n = p .. 'n:' .. node
  if field(n, 'taken') ~= field(n, 'fence') then
    fail(gen, CALLED_OFF[reason])
    return true
  end
  if field(p .. 'g:' .. gen, 'state') == 'assigned' then
    redis.call('HSETNX', p .. 'g:' .. gen, 'cancel', reason)
  end
  redis.call('ZADD', p .. 'owes', 'NX', int(now + limits.stop), node)
  knock(node, 'cancel')
  redis.call('PUBLISH', p .. 'bell:' .. gen, 'cancel')
  return false
end

-- End a lease for the seat's own sake: at once when nothing runs, else after the running answer.
local function dismiss(ticket, reason, stop_reason)
  local t = p .. 't:' .. ticket
  mark_ending(ticket, reason, '+inf')
  local gen = field(t, 'generation')
  if not stop_running(ticket, stop_reason) then return end
  if gen == '' then end_lease(ticket, reason) else settle(field(t, 'node')) end
end
