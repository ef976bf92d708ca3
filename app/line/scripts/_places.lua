-- Shared by submit and places: where a question stands. Runs behind _pump.lua.
-- All values are strings; '' is "none".

-- What all places of one answer share: {nodes that serve, waiting in r, priority, browser, api, turns (ms)..}
local function shared()
  local row = {
    int(serving()),
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
--  queued ms, claim left ms}; false when the generation is unknown.
local function place(gen, waited_for)
  local state, ticket, queued_at, assigned_at, ended_at, node = unpack(redis.call('HMGET',
    p .. 'g:' .. gen, 'state', 'ticket', 'queued_at', 'assigned_at', 'ended_at', 'node'))
  if not state then return false end
  local lane, rank, behind, info, slice_left, ending, claim_left = '', '', 0, '', '', '', ''
  if state ~= 'ended' then
    local stands, running, slice_until
    stands, lane, running, slice_until, ending = unpack(redis.call('HMGET', p .. 't:' .. ticket,
      'state', 'lane', 'generation', 'slice_until', 'ending'))
    if state == 'queued' then
      behind = redis.call('LPOS', p .. 'j:' .. ticket, gen) or 0
      if stands == 'waiting' then
        rank = int((redis.call('ZRANK', p .. 'w:' .. lane, ticket) or 0) + 1)
        local claim_until = redis.call('ZSCORE', p .. 'claim', ticket)
        if claim_until then claim_left = int(math.max(0, tonumber(claim_until) - now)) end
      elseif running ~= '' then
        behind = behind + 1
      end
    end
    if stands == 'granted' and waited_for then
      slice_left = int(math.max(0, tonumber(slice_until) - now))
    end
  end
  if node ~= '' then info = field(p .. 'n:' .. node, 'info') end
  local left_at = tonumber(assigned_at or '') or tonumber(ended_at or '') or now
  return {gen, state, ticket, lane, rank, int(behind), node, info, slice_left, ending or '',
    int(left_at - tonumber(queued_at)), claim_left}
end
