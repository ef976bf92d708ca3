-- Wipe the texts of ended generations. Prelude: generation.lua (for p only).
-- ARGV: generations. Returns those that have not ended: their texts are still being written.

local open = {}
for _, gen in ipairs(ARGV) do
  local state = redis.call('HGET', p .. 'g:' .. gen, 'state')
  if state and state ~= 'ended' then
    open[#open + 1] = gen
  else
    redis.call('HDEL', p .. 'g:' .. gen, 'payload')
    redis.call('DEL', p .. 's:' .. gen)
  end
end
return open
