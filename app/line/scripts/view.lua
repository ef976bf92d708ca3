-- A pool from outside. Changes nothing.
-- KEYS[1] pool prefix. ARGV: limits. Result: {nodes, idle nodes, waiting}

return {redis.call('ZCARD', p .. 'nodes'), redis.call('ZCARD', p .. 'idle'), waiting_total()}
