-- All lanes from head to tail, for replicas with so many watchers that asking for each is dear.
-- KEYS[1] pool prefix. ARGV: limits. Result: {shared, r, priority, browser, api}

pump()
local result = {shared(), redis.call('ZRANGE', p .. 'w:r', 0, -1)}
for _, tier in ipairs(TIERS) do
  result[#result + 1] = redis.call('ZRANGE', p .. 'w:' .. tier, 0, -1)
end
return result
