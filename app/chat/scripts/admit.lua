-- Lets a visitor in while fewer than `most` of its account are in.
-- KEYS[1]: the account's visitors (zset: seat -> when it came in, ms)   ARGV: seat, most, settle_ms
-- Returns an empty list when the visitor is in, else the seats that came in more than settle_ms
-- ago, oldest first, for the caller to look whether they are still in line; '' when there is none.

local seat, most, settle_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local t = redis.call('TIME')
local now_ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)

if redis.call('ZSCORE', KEYS[1], seat) or redis.call('ZCARD', KEYS[1]) < most then
  redis.call('ZADD', KEYS[1], now_ms, seat)
  redis.call('EXPIRE', KEYS[1], 86400)
  return {}
end
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms - settle_ms, 'LIMIT', 0, 100)
if #old == 0 then return {''} end
return old
