"""requested.py URL prints what is there, by requests; without a URL it tells whether there is such a library."""

import sys

try:
    import requests
except ImportError:
    from pip._vendor import requests

for url in sys.argv[1:]:
    response = requests.get(url, timeout=20)
    response.raise_for_status()
    sys.stdout.write(response.text)
