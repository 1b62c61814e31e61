#!/usr/bin/env bash
# The day of a service with curl alone: lists, events, filters, an item that comes and goes, a user who is forgotten.
#
#     fullrank serve runs/sasrec --store memory:                   # in another terminal
#     bash examples/serve_with_curl.sh http://127.0.0.1:8000
#     bash examples/serve_with_curl.sh http://127.0.0.1:8000 "nail lacquer"
#
# Each step says what it found and checks what is promised (docs/guide/serving.md); the first promise that does not hold
# ends the script with status 1. It adds an item, a user and a column `shelf`: the item is retired, the user forgotten
# and the column emptied at the end, but try it on a service that nobody needs. FULLRANK_KEY is a key with the scopes
# read and write. Needs curl 7.76, and python3 to look into the answers.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "usage: bash examples/serve_with_curl.sh URL [WORDS OF A TITLE]" >&2
  exit 2
fi
url=${1%/}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers=(--header 'content-type: application/json')
if [[ -n ${FULLRANK_KEY:-} ]]; then # in a file: others can read a command line
  printf 'authorization: Bearer %s\n' "$FULLRANK_KEY" >"$work/key"
  headers+=(--header "@$work/key")
fi
user=curl-$$-$RANDOM
"$python" -c 'import json, sys; print(json.dumps(dict(user=sys.argv[1], words=sys.argv[2])))' \
  "$user" "${2:-}" >"$work/my.json"

# call NAME METHOD PATH [BODY]: what the service answers is kept as NAME.
call() {
  local body=()
  if [[ -n ${4:-} ]]; then body=(--data "$4"); fi
  curl --silent --show-error --fail-with-body --max-time 30 --request "$2" "${headers[@]}" \
    ${body[@]+"${body[@]}"} --output "$work/$1.json" "$url$3" || { cat "$work/$1.json" >&2 2>/dev/null; exit 1; }
}

# made EXPRESSION: one of Python in which every answer that was kept is a variable; text as it is, all else as JSON.
made() {
  "$python" -c '
import json, pathlib, sys, urllib.parse
kept = {file.stem: json.loads(file.read_text()) for file in pathlib.Path(sys.argv[1]).glob("*.json")}
kept |= {"ids": lambda answer: [one["item"] for one in answer["items"]], "quote": urllib.parse.quote}
found = eval(f"({sys.argv[2]})", kept)
print(found if isinstance(found, str) else json.dumps(found))' "$work" "$1"
}

# holds SENTENCE EXPRESSION [EXPRESSION]: a promise, and what is told of it.
holds() {
  local found
  found=$(made "bool($2), ($2) and ${3:-\"\"}")
  if [[ $found == '[true, '* ]]; then
    found=${found#'[true, "'} && found=${found%'"]'}
    echo "  ok: $1${found:+ ($found)}"
  else
    echo "  NOT SO: $1 -- $2" >&2
    exit 1
  fi
}

# list NAME SETTINGS: six items for the user.
list() { call "$1" POST /v1/recommend "$(made '{"user": my["user"], "k": 6, **'"$2"'}')"; }

echo "1. It answers"
call ready GET /readyz
holds "ready" 'ready["status"] == "ok"' 'str(ready["items"]) + " items, version " + ready["version"]'

echo "2. A user of whom nothing is known gets the most popular items"
list popular '{"titles": True}'
holds "six of them, and it is said where they come from" 'len(ids(popular)) == 6 and popular["source"] == "popular"'

echo "3. Events change the answer, and are stored once"
call found GET "/v1/items?limit=2&query=$(made 'quote(my["words"])')"
holds "two items by words of their titles" 'len(ids(found)) == 2' 'str(ids(found))'
events=$(made '{"events": [{"user": my["user"], "item": item, "event_id": my["user"] + str(n), "time": 1000.0 + n}
  for n, item in enumerate(ids(found))]}')
call stored POST /v1/events "$events"
call again POST /v1/events "$events"
holds "two are stored; sent again, they are duplicates" \
  'stored["stored"] == 2 and again == {"stored": 0, "duplicates": 2, "unknown_items": []}'
list first '{"titles": True}'
holds "now the model answers, with another list" \
  'first["source"] == "model" and ids(first) != ids(popular)' 'str(ids(first))'
holds "nothing in it was chosen before" 'not set(ids(first)) & set(ids(found))'
call own POST /v1/recommend "$(made '{"history": ids(found), "k": 6}')"
holds "the same history inside the request gives the same list" 'ids(own) == ids(first)'

echo "4. What is excluded or filtered out leaves no gap"
list without '{"exclude": ids(first)[:1]}'
holds "the first item excluded, the others move up and one joins" \
  'ids(without)[:5] == ids(first)[1:] and len(set(ids(without))) == 6'
call shelves POST /v1/items "$(made '{"items": [
  {"id": item, "features": {"shelf": my["user"] + "ab"[n % 2]}} for n, item in enumerate(ids(first))]}')"
list filtered '{"filters": {"shelf": my["user"] + "b"}}'
holds "a filter on a column that was put a moment ago" 'ids(filtered) == ids(first)[1::2]' 'str(ids(filtered))'
list allowed '{"allow": ids(first)[2:4]}'
holds "a list of what is allowed and nothing else" 'ids(allowed) == ids(first)[2:4]'

echo "5. An item that was not there is recommended at once"
number=90$RANDOM # an id of the catalogue's kind
new=$(made "[$number if isinstance(ids(found)[0], int) else 'new-$number']")
echo "$new" >"$work/new.json"
call added POST /v1/items "$(made '{"items": [{"id": new[0], **({"title": found["items"][0]["title"] + ", refill"}
  if found["items"][0]["title"] else {"like": ids(found)})}]}')"
holds "it is new, and its vector is a mean of those of items like it" \
  'added["items"][0]["new"] and added["items"][0]["neighbours"]' '"found by its " + added["items"][0]["from"]'
call similar GET "/v1/items/$(made 'quote(str(new[0]))')/similar?k=20"
holds "items similar to it, without itself" 'len(ids(similar)) == 20 and new[0] not in ids(similar)'
among=$(made '{"history": added["items"][0]["neighbours"][:1], "k": 10, "allow": [*new, *ids(similar)[:9]]}')
call shown POST /v1/recommend "$among"
holds "it is shown" 'new[0] in ids(shown)' 'f"place {ids(shown).index(new[0]) + 1} of {len(ids(shown))} items like it"'
call whole POST /v1/recommend "$(made '{"history": added["items"][0]["neighbours"][:1], "k": 1000}')"
made '"  " + (f"place {ids(whole).index(new[0]) + 1}" if new[0] in ids(whole) else "not among the first thousand") +
  " of all items, for who chose the nearest of those like it: that is the model'"'"'s judgement"'

echo "6. Retired, it is in no list any more"
call retired POST /v1/items "$(made '{"items": [{"id": new[0], "retired": True}]}')"
call gone POST /v1/recommend "$among"
call left POST /v1/recommend "$(made '{"history": added["items"][0]["neighbours"][:1], "k": 1000}')"
holds "nor does its place stay empty" \
  'new[0] not in ids(gone) + ids(left) and ids(left)[:50] == [one for one in ids(whole) if one != new[0]][:50]'

echo "7. A mistake is told in a sentence and a code"
status=$(curl --silent --output "$work/wrong.json" --write-out '%{http_code} %{content_type}' "${headers[@]}" \
  "$url/v1/items/no-such-item/similar")
holds "$status" 'wrong["code"] == "unknown-item"' 'wrong["detail"]'
[[ $status == "404 application/problem+json" ]] || { echo "  NOT SO: 404, and a problem of RFC 9457" >&2; exit 1; }

echo "8. A user is forgotten"
call history GET "/v1/users/$user/history"
holds "the history is what was sent, oldest first" '[one["item"] for one in history["events"]] == ids(found)'
call forgotten DELETE "/v1/users/$user"
call nothing GET "/v1/users/$user/history"
list after '{}'
holds "both events are gone, and the list is a stranger's" \
  'forgotten["events"] == 2 and nothing["events"] == [] and ids(after) == ids(popular)'

call tidy POST /v1/items "$(made '{"items": [{"id": item, "features": {"shelf": None}} for item in ids(first)]}')"
echo "done: every promise held"
