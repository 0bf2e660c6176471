"""burst.py URL N fetches a URL N times, one after the other without a pause, each time over a connection of
its own; it prints how many times it got what it got the first time. A failure ends with its traceback."""

import sys
import urllib.request

url, times = sys.argv[1], int(sys.argv[2])
pages = [urllib.request.urlopen(url, timeout=20).read() for _ in range(times)]
print(pages.count(pages[0]))
