-- Write a generation's last entry. Prelude: generation.lua.
-- ARGV: generation, fence, kind, data, data of a delta right before it ('': none), writer, entries
-- that this writer had confirmed. Returns 'ok', 'fenced' or 'gap' (some of those are lost).
-- A repeat with the same fence changes nothing, also when somebody else ended the generation.

local gen = ARGV[1]
if redis.call('HGET', p .. 'g:' .. gen, 'fence') ~= ARGV[2] then return 'fenced' end
local g = redis.call('HMGET', p .. 'g:' .. gen, 'state', 'writer', 'written')
local written = g[2] == ARGV[6] and tonumber(g[3]) or 0
if g[1] == 'assigned' and written < tonumber(ARGV[7]) then return 'gap' end
if ARGV[5] ~= '' and g[1] == 'assigned' then
  redis.call('XADD', p .. 's:' .. gen, '*', 'k', 'delta', 'd', ARGV[5])
end
end_generation(gen, ARGV[3], ARGV[4])
return 'ok'
