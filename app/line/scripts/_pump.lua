-- Shared by the line's operations: what time alone brings about (reaping), and grants.
-- Runs behind _drain.lua. Every loop is bounded: what is left over waits for the next call, and
-- some replica or node calls at least every second.

local BATCH = 100
-- A gap this long between two runs means that the store was away, not that people were.
local OUTAGE_MS = 5000

local function due(index)
  return redis.call('ZRANGEBYSCORE', p .. index, '-inf', int(now), 'LIMIT', 0, BATCH)
end

local function waiting_total()
  local sum = redis.call('ZCARD', p .. 'w:r')
  for _, tier in ipairs(TIERS) do sum = sum + redis.call('ZCARD', p .. 'w:' .. tier) end
  return sum
end

local function begin_lease(ticket, node, gen)
  local slice_until = int(now + limits.slice)
  redis.call('HSET', p .. 't:' .. ticket, 'state', 'granted', 'node', node, 'granted_at', int(now),
    'slice_until', slice_until, 'ending', '', 'extended', '0')
  redis.call('ZREM', p .. 'idle', node)
  leave_address(ticket)
  redis.call('ZADD', p .. 'leases', slice_until, ticket)
  if field(p .. 't:' .. ticket, 'borrowed') == '1' then
    redis.call('ZADD', p .. 'borrowed', int(now), ticket)
  end
  assign(ticket, node, gen)
end

local function grant(held)
  for _ = 1, BATCH do
    local node = redis.call('ZRANGE', p .. 'idle', 0, 0)[1]
    if not node then return end
    if tonumber(redis.call('ZSCORE', p .. 'nodes', node) or '0') <= now then
      hold_back(node) -- silent (right after an outage): nobody is sent there
    else
      local ticket = next_ticket(held)
      if not ticket then return end
      local gen = next_job(ticket)
      if gen then begin_lease(ticket, node, gen) else close_ticket(ticket, 'left') end
    end
  end
end

-- n waiters end at most n leases, oldest first; an answer may finish within the cap. When waiters
-- go away again, the leases marked last go on.
local function end_slices(held)
  local want, marked = waiting_total(), redis.call('ZCARD', p .. 'ending')
  for _ = 1, BATCH do
    if marked <= want then break end
    local ticket = redis.call('ZREVRANGEBYSCORE', p .. 'ending', '(+inf', '-inf', 'LIMIT', 0, 1)[1]
    if not ticket then break end
    redis.call('ZREM', p .. 'ending', ticket)
    redis.call('ZADD', p .. 'leases', field(p .. 't:' .. ticket, 'slice_until'), ticket)
    redis.call('HSET', p .. 't:' .. ticket, 'ending', '')
    marked, changed = marked - 1, true
  end
  for _ = 1, BATCH do
    if marked >= want then break end
    local ticket =
      redis.call('ZRANGEBYSCORE', p .. 'leases', '-inf', int(now), 'LIMIT', 0, 1)[1]
    if not ticket then break end
    if field(p .. 't:' .. ticket, 'generation') == '' then
      end_lease(ticket, 'slice_ended')
      want = want - 1
    else
      mark_ending(ticket, 'slice_ended', int(now + limits.cap))
      marked = marked + 1
    end
  end
  for _, ticket in ipairs(due('ending')) do
    redis.call('ZADD', p .. 'ending', '+inf', ticket)
    if stop_running(ticket, 'slice_ended') then settle(field(p .. 't:' .. ticket, 'node')) end
  end
  grant(held)
end

-- Whoever waits gets back what was borrowed, the longest held first, and no more than is needed.
local function give_back()
  local want = waiting_total()
  if want == 0 then return end
  for _, ticket in ipairs(redis.call('ZRANGE', p .. 'borrowed', 0, BATCH - 1)) do
    if want == 0 then return end
    local ending = field(p .. 't:' .. ticket, 'ending')
    if ending == '' then dismiss(ticket, 'wanted', 'wanted') end
    -- a node that is being drained is given to nobody
    if ending ~= 'drained' then want = want - 1 end
  end
end

local function reap_unseen()
  for _, ticket in ipairs(due('seen')) do
    fail_jobs(ticket, 'away')
    if field(p .. 't:' .. ticket, 'state') == 'waiting' then
      close_ticket(ticket, 'away')
    else
      redis.call('ZREM', p .. 'seen', ticket)
      dismiss(ticket, 'away', 'gone')
    end
  end
end

-- The clock was set back: what was reckoned by the later time would be due far too late.
local function draw_near()
  local longest = {nodes = limits.dead, owes = limits.stop, alive = 0, rest = limits.idle,
    leases = limits.slice, rescue = limits.rescue, claim = limits.claim, draining = limits.cap,
    ending = limits.cap, seen = limits.grace}
  for index, left in pairs(longest) do
    local latest = int(now + left)
    -- infinite: called off already
    local late = redis.call('ZRANGEBYSCORE', p .. index, '(' .. latest, '(+inf')
    for _, name in ipairs(late) do redis.call('ZADD', p .. index, latest, name) end
  end
end

-- When the last outage was noticed (ms), and that this call is here now.
local function last_outage()
  local tick = tonumber(redis.call('GET', p .. 'tick') or int(now))
  local held = tonumber(redis.call('GET', p .. 'hold') or '') or -math.huge
  redis.call('SET', p .. 'tick', int(now))
  if now < tick then draw_near() end
  if now < tick or now - tick > OUTAGE_MS or held > now then
    held = now
    redis.call('SET', p .. 'hold', int(now))
  end
  return held
end

local function pump()
  local held = last_outage()
  -- nodes report every second, so they get a shorter grace than people
  if now >= held + 2 * limits.dead then
    for _, node in ipairs(due('nodes')) do lose_node(node, 'node_lost') end
    for _, node in ipairs(due('owes')) do give_up_on(node) end
  end
  if now >= held + limits.stuck then
    local before = int(now - limits.stuck)
    local still = redis.call('ZRANGEBYSCORE', p .. 'alive', '-inf', before, 'LIMIT', 0, BATCH)
    for _, node in ipairs(still) do look_after(node) end
  end
  if now >= held + limits.rescue then
    for _, gen in ipairs(due('rescue')) do give_up_rescue(gen) end
  end
  -- only people who were cut off need their whole grace to come back
  if now >= held + limits.grace then reap_unseen() end
  if now >= held + 2 * limits.dead then
    for _, ticket in ipairs(due('rest')) do end_lease(ticket, 'idle') end
  end
  if now >= held + limits.claim then
    for _, ticket in ipairs(due('claim')) do give_up_call(ticket, held) end
  end
  grant(held)
  give_back()
  grant(held)
  if now >= held + 2 * limits.dead then
    end_drained()
    end_slices(held)
  end
  if changed then redis.call('PUBLISH', p .. 'bell', '') end
end
