-- A pool from outside. Changes nothing.
-- KEYS[1] pool prefix. ARGV: limits. Result: {nodes that take work, idle ones, waiting}

return {serving(), redis.call('ZCARD', p .. 'idle'), waiting_total()}
