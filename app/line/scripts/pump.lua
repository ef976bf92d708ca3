-- Let time take effect: reap what is overdue and grant what is free (a bounded amount).
-- KEYS[1] pool prefix. ARGV: limits. Result: 1

pump()
return 1
