"""The history store of many machines: a Redis or Valkey server, asked by redis-py (extra `redis`).

Events are added by a script inside the server, all of a call or none. Calls that queue while an
answer is under way go together (`Gatherer`), which makes it quick: a round trip of its own costs
each call more than its work.

Keys, below the store's prefix P: `P:history:{user}` is a sorted set by time of
`[arrival,"event_id",item,time]` (features stand behind the id), where arrivals have equally many
digits, so that equal times stand in the order of arrival. `P:ids:{user}` is a hash with a field `e`
+ event id for each event that is kept, and the last arrival in `n`. `P:users` is a sorted set of
the users who have events, `P:features` a hash. `P:documents` is a hash of documents, `P:order` the
sorted set of their sequence.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from pydantic_core import from_json

from fullrank.core.errors import UserError, brief
from fullrank.serving.stores import KEEP, EventRow, Gatherer, HistoryStore, StoreUnavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis

TIMEOUT = 1.0
"""Seconds for a connection, and for an answer."""
LONGEST = 1.6
"""Seconds for a call with all that it tries."""
FORMAT = 1
"""Under `PREFIX:format`: goes up when an older reader could not read what is written."""
OLDEST_SERVER = 5
"""Redis 5 is the first whose scripts may ask for the time and write after it."""
_PAGE = 1000
"""Documents of one answer."""
EVENTS_TOGETHER = 4096
"""Events of one script, which keeps the server from everybody else."""
READS_TOGETHER = 1024
"""Users of one answer."""


class RedisStore(HistoryStore):
    """`redis://[:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` with TLS, `unix://[:PASSWORD@]PATH`; `?prefix=NAME`.

    One server, with or without replicas; a cluster is refused. Once connected, `promise`
    says what this server keeps.
    """

    promise = "the server decides what survives it; not connected yet"

    def __init__(self, address: str, keep: int = KEEP):
        self._url, self._prefix, shown = redis_address(address)
        super().__init__(shown, keep)
        self._client: Redis | None = None
        self._added = Gatherer(self._add_together, EVENTS_TOGETHER)
        self._read = Gatherer(self._read_together, READS_TOGETHER)
        self._users = Gatherer(self._users_together, READS_TOGETHER)

    async def open(self) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import ConnectionError as Refused

        # Once more, at once: a connection that idled in the pool is dead when the
        # server was started again.
        retry = Retry(NoBackoff(), 1, supported_errors=(Refused,))
        try:
            client = Redis.from_url(self._url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=retry)
        except (TypeError, ValueError) as error:
            raise self._wrong_address(self._secretless(error)) from None
        self._scripts = {text: client.register_script(text) for text in (ADD, READ, FORGET, PUT, DOCUMENTS)}
        self._client = client
        try:
            self.promise = await self._promise()
        except BaseException:
            self._client = None
            await client.aclose()
            raise

    async def close(self) -> None:
        for gatherer in (self._added, self._read, self._users):
            await gatherer.finish()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ping(self) -> None:
        # refused where writes are: a full server, one that cannot save, a replica
        await self._call(lambda client: client.setnx(self._key("format"), FORMAT))

    async def _add(self, rows: Sequence[EventRow]) -> list[bool]:
        return await self._added(rows, len(rows))

    async def _add_together(self, calls: Sequence[Sequence[EventRow]]) -> list[list[bool]]:
        """Add the events of several calls by one script: whether each was new, call by call."""
        rows = [row for call in calls for row in call]
        users = {user: number for number, user in enumerate(dict.fromkeys(row.user for row in rows), 1)}
        keys = [self._key("users")]
        for user in users:
            keys += [self._key("history", user), self._key("ids", user)]
        arguments: list[Any] = [self.keep, len(users), *users]
        for event_id, user, time, body in rows:
            arguments += [users[user], event_id, repr(time), body[1:]]
        new = iter(await self._script(ADD, keys, arguments))
        return [[next(new) == 1 for _ in call] for call in calls]

    async def _last(self, user: str, limit: int) -> str:
        return (await self._read((user, limit))).decode()

    async def _read_together(self, calls: Sequence[tuple[str, int]]) -> Sequence[bytes]:
        keys = [self._key("history", user) for user, _ in calls]
        return await self._script(READ, keys, [limit for _, limit in calls])

    async def _put_user(self, user: str, features: str) -> None:
        await self._call(lambda client: client.hset(self._key("features"), user, features))

    async def _user(self, user: str) -> bytes | None:
        return await self._users(user)

    async def _users_together(self, users: Sequence[str]) -> Sequence[bytes | None]:
        return await self._call(lambda client: client.hmget(self._key("features"), list(users)))

    async def _delete_user(self, user: str) -> tuple[int, bool]:
        keys = [self._key("history", user), self._key("ids", user), self._key("users"), self._key("features")]
        events, features = await self._script(FORGET, keys, [user])
        return events, features == 1

    async def _put_documents(self, kind: str, rows: Sequence[tuple[str, str]]) -> int:
        arguments = [argument for key, body in rows for argument in (f"{kind}\0{key}", body)]
        return int(await self._script(PUT, [self._key("documents"), self._key("order")], arguments))

    async def _documents(self, after: int) -> Sequence[tuple[int, Sequence[Any]]]:
        rows: list[tuple[int, Sequence[Any]]] = []
        while True:
            text = await self._script(DOCUMENTS, [self._key("documents"), self._key("order")], [after, _PAGE])
            page = from_json(b"[" + text + b"]")
            rows += page
            if len(page) < _PAGE:
                return rows
            after = page[-1][0]

    async def _sample(self, count: int, draw: random.Random) -> list[str]:
        """Every user is as likely as any other."""
        users = self._key("users")
        size: int = await self._call(lambda client: client.zcard(users))
        ranks = draw.sample(range(size), min(count, size))
        if not ranks:
            return []

        async def ask(client: Redis) -> Any:
            async with client.pipeline(transaction=True) as pipe:
                for rank in ranks:
                    pipe.zrange(users, rank, rank)
                return await pipe.execute()

        return list(dict.fromkeys(user.decode() for page in await self._call(ask) for user in page))

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    async def _script(self, text: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        return await self._call(lambda client: self._scripts[text](keys=keys, args=arguments, client=client))

    async def _call(self, ask: Callable[[Redis], Awaitable[Any]]) -> Any:
        """The answer of the server. Raises `StoreUnavailable` for whatever goes wrong on the way."""
        from redis.exceptions import RedisError

        client = self._client
        if client is None:
            raise StoreUnavailable(f"the store {self.address} is closed")
        try:
            async with asyncio.timeout(LONGEST):
                return await ask(client)
        except (RedisError, OSError) as error:  # also TimeoutError, which is an OSError
            reason = self._secretless(error) or f"no answer within {LONGEST} seconds"
            raise StoreUnavailable(f"the store {self.address} cannot be used ({reason})") from error

    async def _promise(self) -> str:
        """The promise of the server. Raises `UserError` where it cannot be our store."""
        info = await self._allowed(lambda client: client.info())
        if str(info.get("redis_mode")) == "cluster" or info.get("cluster_enabled") == 1:
            raise self._wrong_address("it is a cluster, and one server is needed")
        version = str(info.get("redis_version", OLDEST_SERVER))
        if version.split(".", maxsplit=1)[0].isdigit() and int(version.split(".", maxsplit=1)[0]) < OLDEST_SERVER:
            raise self._wrong_address(f"it is version {version}, and {OLDEST_SERVER} or newer is needed")
        await self._call(lambda client: client.setnx(self._key("format"), FORMAT))
        stored_format = (await self._call(lambda client: client.get(self._key("format")))).decode(errors="replace")
        if stored_format != str(FORMAT):
            raise UserError(
                f"what stands under {self._prefix!r} in {self.address} has format {brief(stored_format)}, and this "
                f"fullrank reads {FORMAT}; install a newer fullrank, or set another name (?prefix=NAME)",
                code="newer-history-store",
            )
        settings = await self._allowed(lambda client: client.config_get("append*"))
        settings |= await self._allowed(lambda client: client.config_get("maxmemory*"))
        return promise_of(settings)

    async def _allowed(self, ask: Callable[[Redis], Awaitable[Any]]) -> dict[str, Any]:
        """The answer of the server; empty where it refuses the command, as one of a provider or
        with access rules may."""
        from redis.exceptions import ResponseError

        try:
            return dict(await self._call(ask))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ResponseError):
                return {}
            raise

    def _wrong_address(self, reason: str) -> UserError:
        return UserError(
            f"{self.address} cannot be the store: {reason}; name another server", code="unfit-store-server"
        )

    def _secretless(self, error: BaseException) -> str:
        """The text of an error, without the password, whatever put it in there."""
        text = " ".join(str(error).split())
        for secret in secrets(self._url):
            text = text.replace(secret, "***")
        return text[:200]


PREFIX = "fullrank"
"""Before every key, unless the address says otherwise."""
OPTIONS = {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
"""Options behind the `?` of an address, beside `prefix`; the words are those of redis-py."""


def promise_of(settings: Mapping[str, Any]) -> str:
    """The promise of a server with these settings (of CONFIG GET): which acknowledged data it keeps."""
    if "appendonly" not in settings:
        promise = "the server decides what survives it, and did not say how it is set (CONFIG GET is not allowed)"
    elif settings["appendonly"] != "yes":
        promise = (
            "acknowledged events may be lost when the server ends, back to its last snapshot if it has any "
            "(appendonly no)"
        )
    elif settings.get("appendfsync") == "always":
        promise = "acknowledged events survive a killed server and a loss of power (appendonly yes, appendfsync always)"
    elif settings.get("appendfsync") == "everysec":
        # The server answers before it writes to its log while an earlier flush of the log is under
        # way.
        promise = (
            "acknowledged events of the last two seconds may be lost when the server is killed or loses power "
            "(appendonly yes, appendfsync everysec; set appendfsync always to lose none)"
        )
    else:
        promise = (
            "acknowledged events survive a killed server; a loss of power takes what the system has not written yet, "
            "about 30 seconds (appendonly yes, appendfsync no)"
        )
    if str(settings.get("maxmemory", "0")) != "0" and str(settings.get("maxmemory-policy")).startswith("allkeys"):
        promise += (
            f"; and the server drops histories when its memory is full ({settings['maxmemory-policy']}: set noeviction)"
        )
    return promise


def redis_address(address: str) -> tuple[str, str, str]:
    """The URL for redis-py, the prefix of all keys, and the address as it may be shown."""
    scheme = address.partition(":")[0].lower()
    try:
        url = urlsplit(address)
        options = dict(parse_qsl(url.query, keep_blank_values=True))
        port = url.port
    except ValueError:
        options, port, url = {}, None, urlsplit("")
    host = url.path if scheme == "unix" else url.hostname
    prefix = options.pop("prefix", PREFIX)
    wrong_db = scheme != "unix" and not re.fullmatch(r"/?\d*", url.path)  # redis-py would take it for 0
    if not host or wrong_db or set(options) - OPTIONS or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", prefix):
        raise UserError(
            f"the address of a store {scheme}://... cannot be read (allowed: redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]"
            ", rediss://..., unix://[[USER]:PASSWORD@]PATH[?db=DB], with ?prefix=NAME of up to 64 letters and digits)",
            code="unknown-store-address",
        )
    at = host if scheme == "unix" else (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    shown = f"{scheme}://{at}" + ("" if scheme == "unix" else url.path)
    return url._replace(query=urlencode(options)).geturl(), prefix, shown


def secrets(url: str) -> list[str]:
    """The password in a URL, as it is written and as it is meant: what no log may show."""
    password = urlsplit(url).password
    return [secret for secret in {password, unquote(password or "")} if secret]


# -- Lua scripts, which run inside the server, each as a whole or not at all

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

# Sequences are microseconds since 1970, and one more than the last where that is not enough: a
# server that lost its data goes on above what readers have seen, so that they miss nothing. Until
# the year 2255 a double holds them exactly.
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
