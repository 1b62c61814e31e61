"""What a Redis history store sends: Lua scripts that run inside the server, each as a whole or not at all.

Keys, below the store's prefix P: `P:history:{user}` is a sorted set by time of `[arrival,"event_id",item,time]`
(features stand behind the id), where arrivals have equally many digits, so that equal times stand in the order of
arrival. `P:ids:{user}` is a hash with a field `e` + event id for each event that is kept, and the last arrival in `n`.
`P:users` is a sorted set of the users who have events, `P:features` a hash. `P:documents` is a hash of documents,
`P:order` the sorted set of their sequence.
"""

from __future__ import annotations

FIRST = 100_000_000_000_000
"""Arrivals begin above it: fifteen digits, which a double holds exactly."""

ADD = f"""
-- KEYS: users, then history and ids of each user. ARGV: keep, users, their names, then (user's place, id, time, event)
local keep, users, new = tonumber(ARGV[1]), tonumber(ARGV[2]), {{}}
local at = 3 + users
while at < #ARGV do
  local user = tonumber(ARGV[at])
  local history, ids = KEYS[2 * user], KEYS[2 * user + 1]
  if redis.call('HSETNX', ids, 'e' .. ARGV[at + 1], '') == 1 then
    local arrival = {FIRST} + redis.call('HINCRBY', ids, 'n', 1)
    redis.call('ZADD', history, ARGV[at + 2], '[' .. string.format('%.0f', arrival) .. ',' .. ARGV[at + 3])
    new[#new + 1] = 1
  else
    new[#new + 1] = 0
  end
  at = at + 4
end
for user = 1, users do
  local history, ids = KEYS[2 * user], KEYS[2 * user + 1]
  redis.call('ZADD', KEYS[1], 0, ARGV[2 + user])
  local over = redis.call('ZCARD', history) - keep
  if over > 0 then
    for _, event in ipairs(redis.call('ZRANGE', history, 0, over - 1)) do
      redis.call('HDEL', ids, 'e' .. cjson.decode(event)[2])
    end
    redis.call('ZREMRANGEBYRANK', history, 0, over - 1)
  end
end
return new
"""

READ = """
-- KEYS: histories. ARGV: how many of each. One text for each: newest first
local found = {}
for user = 1, #KEYS do
  found[user] = table.concat(redis.call('ZREVRANGE', KEYS[user], 0, ARGV[user] - 1), ',')
end
return found
"""

FORGET = """
-- KEYS: history, ids, users, features. ARGV: user
local events = redis.call('ZCARD', KEYS[1])
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return {events, redis.call('HDEL', KEYS[4], ARGV[1])}
"""

# Sequences are microseconds since 1970, and one more than the last where that is not enough: a server that lost its
# data goes on above what readers have seen, so that they miss nothing. Until the year 2255 a double holds them exactly.
PUT = """
-- KEYS: documents, order. ARGV: (field, document) of each
local now = redis.call('TIME')
local next = now[1] * 1000000 + now[2]
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
if last[2] and tonumber(last[2]) >= next then next = tonumber(last[2]) + 1 end
for at = 1, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[2], string.format('%.0f', next), ARGV[at])
  next = next + 1
end
return string.format('%.0f', next - 1)
"""

DOCUMENTS = """
-- KEYS: documents, order. ARGV: after, how many. One text: [sequence,document],...
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local texts = {}
for at = 1, #found, 2 do
  local sequence = string.format('%.0f', tonumber(found[at + 1]))
  texts[#texts + 1] = '[' .. sequence .. ',' .. redis.call('HGET', KEYS[1], found[at]) .. ']'
end
return table.concat(texts, ',')
"""
