"""fetch.py URL prints what is there; a failure ends with its traceback, behind the reason if the answer has one."""

import sys
import urllib.error
import urllib.request

try:
    sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as err:
    print("X-Sandboxallow-Reason:", err.headers["X-Sandboxallow-Reason"], file=sys.stderr)
    raise
