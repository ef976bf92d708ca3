-- Ended generations that nobody has taken yet, and those whose taker did not finish in time.
-- Prelude: generation.lua (for p only).
-- ARGV: group, consumer, most entries, ms after which another's entry may be taken over,
--       ms after which a silent consumer with nothing left to do is forgotten.
-- Returns {entry id, generation, ...}.

local key, group, consumer, most = p .. 'ended', ARGV[1], ARGV[2], ARGV[3]

-- The group is made where it is missing: at the first use, and after the store lost its data.
local made = redis.pcall('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end

local found = {}
local function collect(entries)
  for _, entry in ipairs(entries) do
    found[#found + 1] = entry[1]
    found[#found + 1] = entry[2][2]
  end
end

collect(redis.call('XAUTOCLAIM', key, group, consumer, ARGV[4], '0-0', 'COUNT', most)[2])
local fresh = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', most, 'STREAMS', key, '>')
if fresh then collect(fresh[1][2]) end

-- Every start of a replica is a new consumer; without this their names pile up for ever.
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
  local of = {}
  for i = 1, #info, 2 do of[info[i]] = info[i + 1] end
  if of.name ~= consumer and of.pending == 0 and of.idle > tonumber(ARGV[5]) then
    redis.call('XGROUP', 'DELCONSUMER', key, group, of.name)
  end
end
return found
