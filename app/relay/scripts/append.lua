-- Append entries to a generation's stream, in one step with the check of the fence.
-- Prelude: generation.lua.
--
-- ARGV: generation, fence, writer, index of the first entry among all that this writer sent,
--       most entries, most bytes, seconds until an orphaned stream expires, then (kind, data)...
-- Returns {verdict, cancel reason or false}; verdict: 'ok', 'fenced', 'full', 'gap' (the store has
-- lost entries that it had confirmed: it was restarted, or failed over).

local gen, fence, writer = ARGV[1], ARGV[2], ARGV[3]
local first = tonumber(ARGV[4])
local most_entries, most_bytes, orphan_seconds = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local hash, stream = p .. 'g:' .. gen, p .. 's:' .. gen

local g = redis.call('HMGET', hash, 'state', 'fence', 'cancel', 'writer', 'written', 'bytes')
if g[1] ~= 'assigned' or g[2] ~= fence then return {'fenced', false} end

-- A writer that got no answer sends the same entries again: those that had arrived are skipped.
local written = 0
if g[4] == writer then written = tonumber(g[5]) end
if written < first then return {'gap', g[3]} end
local from = 8 + 2 * math.max(0, written - first)

local bytes = tonumber(g[6] or '0')
for i = from, #ARGV, 2 do bytes = bytes + #ARGV[i + 1] end
local count = math.max(0, (#ARGV - from + 1) / 2)
if bytes > most_bytes or redis.call('XLEN', stream) + count > most_entries then
  return {'full', g[3]}
end

if count > 0 then
  for i = from, #ARGV, 2 do
    redis.call('XADD', stream, '*', 'k', ARGV[i], 'd', ARGV[i + 1])
  end
  redis.call('HSET', hash, 'writer', writer, 'written', int(math.max(written, first) + count),
    'bytes', int(bytes), 'wrote_at', int(now_ms()))
  redis.call('EXPIRE', stream, orphan_seconds)
  redis.call('PUBLISH', p .. 'bell:' .. gen, ARGV[#ARGV - 1])
end
return {'ok', g[3]}
