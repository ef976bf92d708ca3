-- Write a generation's last entry. Prelude: generation.lua.
-- ARGV: generation, fence, kind, data, data of a delta right before it ('': none). Returns 'ok' or 'fenced'.
-- A repeat with the same fence changes nothing, also when somebody else ended the generation.

local gen = ARGV[1]
if redis.call('HGET', p .. 'g:' .. gen, 'fence') ~= ARGV[2] then return 'fenced' end
if ARGV[5] ~= '' and redis.call('HGET', p .. 'g:' .. gen, 'state') == 'assigned' then
  redis.call('XADD', p .. 's:' .. gen, '*', 'k', 'delta', 'd', ARGV[5])
end
end_generation(gen, ARGV[3], ARGV[4])
return 'ok'
