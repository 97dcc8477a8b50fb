"""The HTTP client: httpx2, which its author goes on with; httpx, its last release, where that is all there is."""

from __future__ import annotations

try:
    import httpx2 as httpx
except ImportError:  # Python 3.10
    import httpx  # type: ignore[no-redef]

__all__ = ["httpx"]
