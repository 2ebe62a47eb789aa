-- extend (rule 5). ARGV: owner, ttl, token, quarantine, run_id, n, list.
local owner, ttl, token = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holder, wrong = read('GET', lock)
if wrong then return wrong end
-- Before all else: what is held stays held whatever the state looks like, and a script that has written may go on
-- writing where memory is full.
if holder == owner then redis.call('PEXPIRE', lock, ARGV[2]) end
local refusal = recall(ARGV[5])
if refusal then return refusal end
look_at_marker(tonumber(ARGV[4]), true)

if holder and holder ~= owner then return answer('lost-owner', holder, time_left(holder, true)) end

local verdict = 'extended'
if not holder then
  -- Released, or followed by a later leadership: a late extend must not bring the key back.
  if token <= kept.over then return answer('lost-over', kept.owner, 0) end
  local owed = owed_to_another(owner, true)
  if owed then return answer('lost-owner', kept.owner, owed) end
  redis.call('SET', lock, owner, 'NX', 'PX', ARGV[2])
  verdict = 'refilled'
end

-- A leadership that extends is proof that every earlier one is over.
kept.over = math.max(kept.over, token - 1)
kept.token = math.max(kept.token, token)
kept.owner, kept.grant, kept.ttl = owner, ARGV[3], ttl
redis.call('HSET', state, 'token', digits(kept.token), 'grant', ARGV[3], 'owner', owner, 'until', digits(now + ttl),
  'ttl', ARGV[2], 'over', digits(kept.over), 'n', ARGV[6], 'list', ARGV[7], 'v', 1)
return answer(verdict, owner, ttl)
