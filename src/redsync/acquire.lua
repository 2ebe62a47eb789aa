-- acquire (rule 4). ARGV: owner, ttl, token, quarantine, run_id, n, list.
local owner, ttl, token = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holder, wrong = read('GET', lock)
if wrong then return wrong end
local refusal = recall(ARGV[5])
if refusal then return refusal end
look_at_marker(tonumber(ARGV[4]), true)

if quarantine > 0 then return answer('quarantined', holder, quarantine) end
if holder and holder ~= owner then return answer('held', holder, time_left(holder, true)) end

-- Asked again: the expiry is renewed, for the vote counts from this ask; the token may only grow.
if holder then
  redis.call('PEXPIRE', lock, ttl)
  redis.call('HSET', state, 'until', digits(now + ttl), 'ttl', ARGV[2])
  kept.ttl = ttl
  if token > kept.token then
    redis.call('HSET', state, 'token', ARGV[3])
    kept.token = token
    if kept.owner == owner then
      redis.call('HSET', state, 'grant', ARGV[3])
      kept.grant = ARGV[3]
    end
  end
  return answer('granted', owner, ttl)
end

local owed = owed_to_another(owner, true)
if owed then return answer('held', kept.owner, owed) end
-- An equal token is refused too: the attempt was released here, and this ask is late (rule 6).
if token <= kept.token then return answer('outdated', false, 0) end

-- The state comes first: where memory is full this fails, and nothing has changed.
redis.call('HSET', state, 'token', ARGV[3], 'grant', ARGV[3], 'owner', owner, 'until', digits(now + ttl),
  'ttl', ARGV[2], 'n', ARGV[6], 'list', ARGV[7], 'v', 1)
redis.call('SET', lock, owner, 'NX', 'PX', ARGV[2])
kept.owner, kept.token, kept.grant, kept.ttl = owner, token, ARGV[3], ttl
return answer('granted', owner, ttl)
