-- Where many questions stand; watching them keeps their seats.
-- KEYS[1] pool prefix. ARGV: limits, watched (1 | 0), claim_ms, generations..
-- Result: {shared, seats whose claim is older than claim_ms (renewed by the caller), place..}
-- Unknown generations are left out.

local watched, claim_ms = ARGV[2] == '1', tonumber(ARGV[3])
local seats = {}
if watched then
  local seen = {}
  for i = 4, #ARGV do
    local state, ticket = unpack(redis.call('HMGET', p .. 'g:' .. ARGV[i], 'state', 'ticket'))
    if state and state ~= 'ended' and not seen[ticket] then
      seen[ticket] = true
      local t = redis.call('HMGET', p .. 't:' .. ticket, 'grace', 'claimed_at', 'seat')
      if t[1] then
        redis.call('ZADD', p .. 'seen', 'XX', int(now + tonumber(t[1])), ticket)
        if now - tonumber(t[2]) >= claim_ms then
          redis.call('HSET', p .. 't:' .. ticket, 'claimed_at', int(now))
          seats[#seats + 1] = t[3]
        end
      end
    end
  end
end
pump()
local result, waited_for = {shared(), seats}, is_waited_for()
for i = 4, #ARGV do
  local row = place(ARGV[i], waited_for)
  if row then result[#result + 1] = row end
end
return result
