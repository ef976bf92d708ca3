-- Claim a seat for one pool, so that it has one place over all pools. Has a slot of its own.
-- KEYS[1] claim. ARGV: pool, lifetime (ms), pool whose claim may be taken over ('': none),
-- name of the join that follows ('': none), how long that join may be on its way (ms).
-- Result: the pool that holds the seat now.

local pool, lifetime, stale, join, patience = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local holder = redis.call('HGET', KEYS[1], 'pool')
if holder and holder ~= pool then
  if holder ~= stale then return holder end
  -- nobody stands there, but somebody may be about to
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if fields[i] ~= 'pool' and tonumber(fields[i + 1]) > now then return holder end
  end
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'pool', pool)
if join ~= '' then
  redis.call('HSET', KEYS[1], 'join:' .. join, string.format('%.0f', now + tonumber(patience)))
end
redis.call('PEXPIRE', KEYS[1], lifetime)
return pool
