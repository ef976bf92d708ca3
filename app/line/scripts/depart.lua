-- A node leaves in order. What it had is looked after like the work of a lost node.
-- KEYS[1] pool prefix. ARGV: limits, node, boot. Result: 1 if it was known, else 0.

local known = field(p .. 'n:' .. ARGV[2], 'boot') == ARGV[3]
if known then
  excuse(ARGV[2])
  lose_node(ARGV[2], 'drained')
end
pump()
return known and 1 or 0
