-- What all scripts share. KEYS: the lock, and its state; both in one hash slot, both declared.
-- Protocol rules are quoted by number. No shebang: a server refuses a `#!lua` script whole when its memory is full.
local lock, state = KEYS[1], KEYS[2]

-- Lua prints large numbers as 1.79e+15, so every number is stored and answered as whole digits.
local function digits(number) return string.format('%.0f', number) end

-- A stored number: 0 where there is none, nil where it cannot be read exactly.
local function whole(stored)
  if not stored then return 0 end
  local number = string.match(stored, '^%d+$') and tonumber(stored)
  return number and number < 9007199254740992 and number or nil
end

-- The node's clock, in milliseconds and (as digits) in microseconds.
local now, time_us
local function read_clock(reply)
  now = reply[1] * 1000 + math.floor(reply[2] / 1000)
  time_us = digits(reply[1] * 1000000 + reply[2])
end

-- As redis.call; but a key of another type is somebody's data, and the refusal says of which. What else is refused
-- before 7.0 begins with the place in this script and not with a code.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then
    local fault = string.gsub(reply.err, '^@user_script: %d+: ', 'ERR ')
    return nil, redis.error_reply(fault .. ' (' .. command .. ')')
  end
  local kind = redis.pcall('TYPE', key)
  return nil, redis.error_reply('WRONGTYPE the key ' .. key .. ' holds a ' .. (kind.ok or 'value of another type'))
end

-- What the state says, the run of the server, and what is left of the quarantine.
local kept, run, quarantine = {}, '', 0

-- Rule 1: what every script but release answers. A foreign owner value may be of any size, and no more than its
-- beginning is for people.
local function answer(verdict, owner, left)
  local grant = ''
  if owner and owner == kept.owner then grant = kept.grant end
  return {
    verdict, string.sub(owner or '', 1, 512), grant, digits(left), digits(kept.token), digits(kept.over),
    digits(kept.ttl), time_us, string.sub(run, 1, 12), quarantine > 0 and 1 or 0,
  }
end

-- Reads the clock, the state and the run_id. Returns the reply to end with, if there is no going on.
-- `told` is the run_id that the client read on this connection, or empty where a script may call INFO (rule 2).
local function recall(told)
  read_clock(redis.call('TIME'))
  local numbers = { 'token', 'over', 'ttl', 'until', 'v' }
  local row, wrong = read('HMGET', state, 'run', 'born', 'owner', 'grant', unpack(numbers))
  if wrong then return wrong end
  kept.run, kept.owner = row[1], row[3]
  kept.born = row[2] and whole(row[2])
  kept.grant = row[4] and whole(row[4]) and row[4] or ''
  for i, field in ipairs(numbers) do
    kept[field] = whole(row[4 + i])
    -- To read it as 0 would let tokens go back, so it is for a person to mend.
    if not kept[field] then
      return redis.error_reply('REDLEADER BADSTATE field ' .. field .. ' of ' .. state .. ' is no number below 2^53')
    end
  end
  run = told
  if run == '' then
    local info = redis.pcall('INFO', 'server')
    run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
  end
  if run == '' then return redis.error_reply('REDLEADER NORUN no run_id to be had') end
  if kept.v > 1 then return answer('newer', kept.owner, 0) end
end

-- Rule 2: whatever comes first after a start writes the marker, and the node has no vote until it has known the lock
-- for as long as a grant that it forgot can last. A marker from the future is what a clock step back leaves behind.
local function look_at_marker(length, writes)
  local born = kept.born
  if kept.run ~= run or not born or born > now then
    born = now
    if writes then redis.call('HSET', state, 'run', run, 'born', digits(now), 'v', 1) end
  end
  quarantine = math.max(0, born + length - now)
end

-- Rule 3: what is left of the key's time. A node whose clock went back must not hold a key for longer than its owner
-- asked for; keys of others than the state names are never touched. -1: no expiry.
local function time_left(owner, writes)
  local left = redis.call('PTTL', lock)
  if owner == kept.owner and kept.ttl > 0 and left > kept.ttl then
    left = kept.ttl
    if writes then
      redis.call('PEXPIRE', lock, left)
      redis.call('HSET', state, 'until', digits(now + left))
    end
  end
  return left
end

-- Rule 4: how long the key is still owed to its owner although it is missing (deleted or evicted), if that is another
-- than the one who asks; else nil. A node whose clock went back owes it no longer than it was asked for, and no less:
-- nobody can tell how much of that time has passed. As a key does, it lasts through its last millisecond.
local function owed_to_another(asker, writes)
  local till = kept['until']
  if not kept.owner or kept.owner == asker or till < now then return nil end
  if till > now + kept.ttl then
    till = now + kept.ttl
    if writes then redis.call('HSET', state, 'until', digits(till)) end
  end
  return till - now
end
