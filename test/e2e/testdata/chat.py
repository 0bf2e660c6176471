"""chat.py URL MODEL prints the answer of a model as it comes, for a key that is none."""

import json
import sys
import urllib.request

url, model = sys.argv[1:3]
request = urllib.request.Request(
    url,
    data=json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Tell a story."}]}).encode(),
    headers={"Content-Type": "application/json", "Authorization": "Bearer none"},
)
with urllib.request.urlopen(request, timeout=20) as response:
    for line in response:
        data = line.decode().removeprefix("data: ").strip()
        if data and data != "[DONE]":
            print(json.loads(data)["choices"][0]["delta"]["content"], end="", flush=True)
