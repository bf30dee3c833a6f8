"""Fetches one URL with one Python library, as a program would: prints the status, or the error's text and exits 1.

usage: fetch.py requests|httpx|aiohttp|urllib URL
"""

import asyncio
import sys
import urllib.request


def with_requests(url):
    import requests

    return requests.get(url, timeout=10).status_code


def with_httpx(url):
    import httpx

    return httpx.get(url, timeout=10).status_code


def with_urllib(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.status


def with_aiohttp(url):
    import aiohttp

    async def fetch():
        # aiohttp reads the proxy variables only when asked to.
        async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as response:
            return response.status

    return asyncio.run(asyncio.wait_for(fetch(), 10))


library, url = sys.argv[1:]
try:
    status = globals()[f"with_{library}"](url)
except ImportError as missing:
    print(f"missing: {missing}")
    sys.exit(77)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
print(status)
sys.exit(0 if status == 200 else 1)
