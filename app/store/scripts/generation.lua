-- Shared by the line and the relay: the clock, and how a generation ends.
-- p is the pool's key prefix (KEYS[1] of every script). Key table: app/store/keys.py.

local p = KEYS[1]

-- Microseconds on the store's clock: what a new fence is at least. Tests move time by the key
-- <p>clock (an offset in ms) and make it stand still by <p>frozen (µs).
local function now_us()
  local set = redis.call('MGET', p .. 'clock', p .. 'frozen')
  local skew = tonumber(set[1] or '0') * 1000
  if set[2] then return tonumber(set[2]) + skew end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2]) + skew
end

-- Milliseconds on the same clock.
local function now_ms()
  return math.floor(now_us() / 1000)
end

-- Whole numbers beyond 2^31 must not turn into "1.7e+15".
local function int(x)
  return string.format('%.0f', x)
end

-- Write the one last event of a generation and mark it ended; false if it had ended before.
-- kind: 'done' or 'failed'; data: the event as JSON.
local function end_generation(gen, kind, data)
  local key = p .. 'g:' .. gen
  local state = redis.call('HGET', key, 'state')
  if not state or state == 'ended' then return false end
  redis.call('XADD', p .. 's:' .. gen, '*', 'k', kind, 'd', data)
  redis.call('HSET', key, 'state', 'ended', 'ended_at', int(now_ms()))
  redis.call('HDEL', key, 'cancel')
  redis.call('XADD', p .. 'ended', '*', 'g', gen)
  redis.call('PUBLISH', p .. 'bell:' .. gen, kind)
  return true
end
