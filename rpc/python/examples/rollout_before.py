"""A toy rollout: agents that take turns with an OpenAI-compatible endpoint. Usage: rollout.py URL"""

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI

AGENTS, TURNS = 32, 4


async def agent(client: Any, n: int) -> int:
    messages = [{"role": "user", "content": f"You are agent {n}. Fix the failing test."}]
    tokens = 0
    for turn in range(TURNS):
        reply = await client.chat.completions.create(model="default", messages=messages, max_tokens=128)
        tokens += reply.usage.completion_tokens
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        messages.append({"role": "user", "content": f"Tool {turn} says: 1 failed, 41 passed."})
    return tokens


async def main(url: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        tokens = await asyncio.gather(*(agent(client, n) for n in range(AGENTS)))
    print(f"{AGENTS} agents generated {sum(tokens)} tokens")


asyncio.run(main(sys.argv[1]))
