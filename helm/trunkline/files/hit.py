"""Two requests with one long prefix: the second must go to the node of the first, and reuse what it computed."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

URL, WORDS = os.environ["URL"], int(os.environ["WORDS"])
prefix = f"Run {time.time_ns()}. " + " ".join(f"word{number}" for number in range(WORDS))


def call(path, body=None):
    headers = {"content-type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=300) as answer:
            return json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: {error.code} {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{URL} does not answer: {error}")


models, _ = call("/v1/models")
model = models["data"][0]["id"]


def ask(question):
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    begun = time.monotonic()
    answer, headers = call("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 4})
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    node, seconds = headers["x-trunkline-node"], time.monotonic() - begun
    print(f"{model} on {node}: {usage['prompt_tokens']} tokens, {cached} of them cached, {seconds:.2f} s", flush=True)
    return node, cached / usage["prompt_tokens"]


first, _ = ask("Who are you?")
time.sleep(1.0)
second, share = ask("What is this?")
if second != first or share < 0.8:
    sys.exit(f"the second request found {share:.0%} of its prompt on {second}, and the first was on {first}")
print("the second request hit")
