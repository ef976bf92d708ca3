-- A node reports and hears what it should be doing.
-- KEYS[1] pool prefix. ARGV: limits, node, boot, running generation, its fence ('', '': nothing
-- runs), highest fence seen.
-- Result: {boot} when the node must register; boot: the start that has its name now, '' for none;
-- else {generation, fence, cancel, seat}; '' is "none".

local node, boot, running, highest = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local running_fence = tonumber(ARGV[5]) or 0
local n = p .. 'n:' .. node
-- 2^52 µs is the year 2112: a larger number is a fault and must not spoil the pool's fences
if highest < 4503599627370496 and highest > tonumber(redis.call('GET', p .. 'fence') or '0') then
  redis.call('SET', p .. 'fence', int(highest))
end
local known = field(n, 'boot')
if known ~= boot then
  pump()
  return {known}
end
redis.call('ZADD', p .. 'nodes', int(now + limits.dead), node)

local state, gen = field(n, 'state'), field(n, 'generation')
-- A report may have been written before the node fetched its last question, and arrive after.
-- One that knows that question's fence was written later; and so was any, a while after the end.
local is_fresh = highest >= (tonumber(field(n, 'taken')) or 0)
if running == '' then
  local stopped_ms = now - (tonumber(field(n, 'stop_since')) or 0)
  if state == 'stop' and (is_fresh or stopped_ms > limits.dead) then
    free_node(node)
    changed = true
  elseif state == 'leased' and gen ~= '' and is_fresh
    and field(p .. 'g:' .. gen, 'state') == 'ended' then
    settle(node) -- its word that it had finished was lost
  end
elseif (state == 'idle' or state == 'drained') and running_fence > (tonumber(field(n, 'done')) or 0) then
  hold_back(node) -- the store forgot a lease that the node still serves
end
pump()

local ticket = field(n, 'ticket')
gen = field(n, 'generation')
local fence, cancel = '', ''
if gen ~= '' then fence, cancel = field(n, 'fence'), field(p .. 'g:' .. gen, 'cancel') end
return {gen, fence, cancel, ticket ~= '' and field(p .. 't:' .. ticket, 'seat') or ''}
