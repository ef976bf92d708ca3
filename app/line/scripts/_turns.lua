-- Shared by the line's operations: whose turn it is, and what happens when nobody is there to take
-- it. Runs behind _rescue.lua.

local TIERS = {'priority', 'browser', 'api'}
-- Stride scheduling: 60 / weight, weights 6 : 3 : 2. Whom the operator put ahead gets most; a
-- person at a screen goes a little before a program, which waits more easily. A weight is a share,
-- never a right of way: each tier with somebody in it gets at least 2 grants of 11.
local STRIDE = {priority = 10, browser = 20, api = 30}
-- Watchers report at least every 5 s; without word for twice as long nobody watches.
local UNWATCHED_MS = 10000
-- So many of a lane's first are looked at for one who is there. It bounds the step, and those far
-- behind are not called before anybody could expect it.
local FIRST = 8
-- Called so often in vain, a place is given up.
local MOST_CALLS = 2

-- Somebody would see that the turn has come: a page is open and in front, or a program waits.
-- held: when the last outage was noticed; after one everybody needs a moment to come back.
local function is_here(ticket, held)
  local t = p .. 't:' .. ticket
  if field(t, 'hidden') == '1' then return false end
  if now < held + 2 * UNWATCHED_MS then return true end
  local until_ms = tonumber(redis.call('ZSCORE', p .. 'seen', ticket))
  return now - (until_ms - tonumber(field(t, 'grace'))) <= UNWATCHED_MS
end

-- Tell those watching (or about to come back) that it is their turn, for as long as a claim lasts.
local function call_up(ticket)
  if redis.call('ZSCORE', p .. 'claim', ticket) then return end
  redis.call('HINCRBY', p .. 't:' .. ticket, 'calls', 1)
  redis.call('ZADD', p .. 'claim', int(now + limits.claim), ticket)
  changed = true
end

-- Somebody is there (again).
local function answer_call(ticket)
  redis.call('HSET', p .. 't:' .. ticket, 'calls', '0')
  if redis.call('ZREM', p .. 'claim', ticket) == 1 then changed = true end
end

-- The tiers in which somebody waits, the one whose turn it is first: {tier, virtual time}..
local function tiers_in_turn()
  local found = {}
  for at, tier in ipairs(TIERS) do
    if redis.call('ZCARD', p .. 'w:' .. tier) > 0 then
      found[#found + 1] = {tier, tonumber(field(p .. 'pass', tier)) or 0, at}
    end
  end
  table.sort(found, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[3] < b[3]) end)
  return found
end

-- The first who is there in one tier, and those passed over for it; false, all that were looked at.
local function first_here(tier, held)
  local passed = {}
  for _, ticket in ipairs(redis.call('ZRANGE', p .. 'w:' .. tier, 0, FIRST - 1)) do
    if is_here(ticket, held) then return ticket, passed end
    passed[#passed + 1] = ticket
  end
  return false, passed
end

-- Take out of its lane the ticket that a free node goes to; false when nobody waits. Whoever is not
-- there is called, and the node goes to the next who is. Nobody near the front there: the first
-- gets the node all the same, for no one loses by it, and the answer is there on return.
local function next_ticket(held)
  -- a failed node's people had their turn: they go on, whether they look or not
  local returned = redis.call('ZPOPMIN', p .. 'w:r')[1]
  if returned then return returned end
  local tiers = tiers_in_turn()
  if #tiers == 0 then return false end
  local absent, chosen, at = {}, false, tiers[1]
  for _, tier in ipairs(tiers) do
    local ticket, passed = first_here(tier[1], held)
    if ticket then
      chosen, at = ticket, tier
      for _, one in ipairs(passed) do absent[#absent + 1] = one end
      break
    end
    absent[#absent + 1] = passed[1]
  end
  if chosen then
    for _, one in ipairs(absent) do call_up(one) end
  else
    chosen = redis.call('ZRANGE', p .. 'w:' .. at[1], 0, 0)[1]
  end
  for _, tier in ipairs(tiers) do
    if tier == at then break end
    redis.call('HSET', p .. 'pass', tier[1], int(at[2])) -- a turn that nobody took is no credit
  end
  redis.call('HSET', p .. 'pass', 'now', int(at[2]), at[1], int(at[2] + STRIDE[at[1]]))
  redis.call('ZREM', p .. 'w:' .. at[1], chosen)
  answer_call(chosen)
  return chosen
end

-- A call that nobody answered. The place stays for the next call, or is given up after the last.
local function give_up_call(ticket, held)
  redis.call('ZREM', p .. 'claim', ticket)
  changed = true
  if is_here(ticket, held) then return answer_call(ticket) end
  if tonumber(field(p .. 't:' .. ticket, 'calls')) < MOST_CALLS then return end
  fail_jobs(ticket, 'unclaimed')
  close_ticket(ticket, 'unclaimed')
end
