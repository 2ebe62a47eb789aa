-- release (rule 6). ARGV: owner, token, how it ended (`released` or `aborted`).
local owner, token, released = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'released'
-- First of all the key: a state that cannot be read must not keep it.
local mine = redis.call('GET', lock) == owner
if mine then redis.call('DEL', lock) end

-- From here on nothing may raise an error, for the key is gone and the answer must say so.
local clock = redis.pcall('TIME')
if not clock.err then read_clock(clock) end
local row = redis.pcall('HMGET', state, 'token', 'over', 'owner')
if not row.err then
  local changes = {}
  local function set(field, value)
    changes[#changes + 1] = field
    changes[#changes + 1] = value
  end
  local known, over = whole(row[1]), whole(row[2])
  -- The attempt is burnt, held here or not: an acquire of it that comes late finds its token used.
  if known and token > known then set('token', ARGV[2]) end
  if over and released and token > over then set('over', ARGV[2]) end
  if row[3] == owner then set('until', '0') end
  if #changes > 0 then redis.pcall('HSET', state, unpack(changes)) end
end
if mine and released then redis.pcall('PUBLISH', 'redleader:' .. lock, ARGV[2]) end
return { mine and 'deleted' or 'absent', time_us or '0' }
