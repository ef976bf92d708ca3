-- SQL has this generation: forget the question, keep the answer only for those who resume.
-- Prelude: generation.lua (for p only).
-- ARGV: group, generation, ms to keep hash and stream, then the ids of its entries in `ended`.

local gen, keep_ms = ARGV[2], ARGV[3]
for i = 4, #ARGV do
  redis.call('XACK', p .. 'ended', ARGV[1], ARGV[i])
  redis.call('XDEL', p .. 'ended', ARGV[i])
end
redis.call('HDEL', p .. 'g:' .. gen, 'payload')
redis.call('PEXPIRE', p .. 'g:' .. gen, keep_ms)
redis.call('PEXPIRE', p .. 's:' .. gen, keep_ms)
return 'ok'
