-- Shared by submit and places: where a question stands. Runs behind _pump.lua.
-- All values are strings; '' is "none".

-- What all places of one answer share: {nodes, waiting in r, priority, browser, api, turns (ms)..}
local function shared()
  local row = {
    int(redis.call('ZCARD', p .. 'nodes')),
    int(redis.call('ZCARD', p .. 'w:r')),
  }
  for _, tier in ipairs(TIERS) do row[#row + 1] = int(redis.call('ZCARD', p .. 'w:' .. tier)) end
  for _, ms in ipairs(redis.call('LRANGE', p .. 'turns', 0, -1)) do row[#row + 1] = ms end
  return row
end

local function is_waited_for()
  return waiting_total() > 0
end

-- {generation, state, ticket, lane, rank, behind_own, node, node info, slice left ms, ending,
--  queued ms}; false when the generation is unknown.
local function place(gen, waited_for)
  local g = redis.call('HMGET', p .. 'g:' .. gen, 'state', 'ticket', 'queued_at', 'assigned_at',
    'ended_at', 'node')
  local state, ticket, node = g[1], g[2], g[6] or ''
  if not state then return false end
  local t = redis.call('HMGET', p .. 't:' .. ticket, 'state', 'lane', 'generation', 'slice_until',
    'ending')
  local lane, rank, behind, slice_left, ending = t[2] or '', '', 0, '', ''
  if state == 'queued' then
    behind = redis.call('LPOS', p .. 'j:' .. ticket, gen) or 0
    if t[1] == 'waiting' then
      rank = int((redis.call('ZRANK', p .. 'w:' .. lane, ticket) or 0) + 1)
    elseif (t[3] or '') ~= '' then
      behind = behind + 1
    end
  end
  if state ~= 'ended' and t[1] == 'granted' then
    ending = t[5] or ''
    if waited_for then slice_left = int(math.max(0, tonumber(t[4]) - now)) end
  end
  local info = node ~= '' and field(p .. 'n:' .. node, 'info') or ''
  local left_at = tonumber(g[4] or '') or tonumber(g[5] or '') or now
  return {gen, state, ticket, lane, rank, int(behind), node, info, slice_left, ending,
    int(left_at - tonumber(g[3]))}
end
