-- Claim a seat for one pool, so that it has one place over all pools. Has a slot of its own.
-- KEYS[1] claim. ARGV: pool, lifetime (ms), pool whose claim may be taken over ('': none),
-- settle (ms): a claim younger than this is never taken over, its join may be on the way.
-- Result: the pool that holds the seat now.

local pool, lifetime, stale, settle = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= pool then
  local age = lifetime - redis.call('PTTL', KEYS[1])
  if holder ~= stale or age < settle then return holder end
end
redis.call('SET', KEYS[1], pool, 'PX', lifetime)
return pool
