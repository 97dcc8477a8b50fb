"""The HTTP client: httpx2, with which the author of httpx goes on; httpx where Python is too old for it."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import httpx2 as httpx
else:
    import httpx

__all__ = ["httpx"]
