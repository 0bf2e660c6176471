"""strict.py URL is fetch.py with the checks of certificates that Python does by default from 3.13 on."""

import ssl
import sys
import urllib.request

context = ssl.create_default_context()
context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=20, context=context).read().decode())
