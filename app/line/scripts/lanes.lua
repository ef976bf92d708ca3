-- All lanes from head to tail, for replicas with so many watchers that asking for each is dear.
-- KEYS[1] pool prefix. ARGV: limits.
-- Result: {shared, {ticket, claim left ms ..} of those called, r, priority, browser, api}

pump()
local called = redis.call('ZRANGE', p .. 'claim', 0, -1, 'WITHSCORES')
for i = 2, #called, 2 do called[i] = int(math.max(0, tonumber(called[i]) - now)) end
local result = {shared(), called, redis.call('ZRANGE', p .. 'w:r', 0, -1)}
for _, tier in ipairs(TIERS) do
  result[#result + 1] = redis.call('ZRANGE', p .. 'w:' .. tier, 0, -1)
end
return result
