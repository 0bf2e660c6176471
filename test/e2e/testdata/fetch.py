"""fetch.py URL prints what is there; a failure ends with its traceback."""

import sys
import urllib.request

sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
