-- look and observe (rule 7). ARGV: quarantine, run_id. WRITES is false for observe, and set by the line before.
local holder, wrong = read('GET', lock)
if wrong then return wrong end
local refusal = recall(ARGV[2])
if refusal then return refusal end
look_at_marker(tonumber(ARGV[1]), WRITES)

-- Nobody can win this node's vote before both the key and the quarantine are over.
if holder then
  local left = time_left(holder, WRITES)
  return answer('seen', holder, left < 0 and left or math.max(left, quarantine))
end
local owed = owed_to_another('', WRITES)
if owed then return answer('seen', kept.owner, math.max(owed, quarantine)) end
return answer('free', false, quarantine)
