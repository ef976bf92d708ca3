-- Only where the web side acts: its settings rule the line, so they are written down for the nodes.
-- Runs behind app/store/scripts/generation.lua and before _tickets.lua, which reads them.

if redis.call('GET', p .. 'limits') ~= ARGV[1] then redis.call('SET', p .. 'limits', ARGV[1]) end
