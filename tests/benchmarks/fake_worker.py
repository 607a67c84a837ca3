"""A worker that answers, crashes, hangs or talks nonsense, as its argument says."""

import json
import os
import signal
import sys
import time

for line in sys.stdin:
    request = json.loads(line)
    how = sys.argv[1]
    if how == "answers":
        print(json.dumps({"answer": request}), flush=True)
    elif how == "refuses":
        print(json.dumps({"error": "no such dtype"}), flush=True)
    elif how == "exits":
        sys.exit("a library is missing")
    elif how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hangs":
        time.sleep(60)
    elif how == "hangs half-way":
        print('{"answer": {', end="", flush=True)
        time.sleep(60)
    elif how == "talks":
        print("Loading weights: 100%", flush=True)
    elif how == "answers a list":
        print("[1]", flush=True)
    elif how == "answers without end":
        while True:
            print("9" * 65536, end="", flush=True)
