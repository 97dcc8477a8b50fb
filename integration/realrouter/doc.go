// Package realrouter tests kvgate against routers that people run: sglang-router 0.3.2, the last
// release under that name, and smg 1.13.0, its successor. There is nothing in it but tests.
//
// The tests install both from the Python package index into a virtual environment of their own, below
// the user's cache directory, keyed by requirements.txt and the Python version. They start a real router
// process, simulated engines (package enginesim), which answer what routers ask an engine, and a real
// kvgate process. They need Python 3.11 or newer with its venv module, and the index once; without them
// they fail and say what is missing. Both packages install a program named smg, so the routers are
// started as Python modules.
//
// # What these routers answer
//
// Seen with both routers at their default policies:
//
//   - GET /workers is 200 with "workers", "total" and "stats". "id" is a UUID. An empty router answers
//     "workers": [].
//   - GET /list_workers is 404: sglang-router's has no body, smg's is a JSON object {"error": {…}}. So
//     only the status tells that the path does not exist.
//   - connection_mode is "HTTP" (sglang-router) or "http" (smg). worker_type is "regular".
//   - sglang-router says what it knows about a worker under "metadata", smg under "labels"; values are
//     strings. smg adds "status", "models", "runtime_type" and "engine_load". Its engine_load read zero
//     tokens of capacity for engines whose /v1/loads told it: it is no source of capacity.
//   - POST /workers {"url"} and DELETE /workers/{id} are 202: the work is queued. The worker_id that POST
//     answers is the id that /workers lists later, except for DP-aware workers, which get one each.
//   - smg drains for 5 s before it removes a worker: meanwhile the worker is listed with status
//     "draining" and is_healthy false, and POST of its URL is refused with WORKER_ALREADY_EXISTS.
//     sglang-router removes at once.
//   - A worker whose engine died stays listed. is_healthy turns false after the configured number of
//     failed checks, by default three, 60 s apart; smg's status is then "not_ready", and after some more
//     "failed". kvgate's own scrape sees the death before.
//   - --dp-aware lists http://host:port@R per rank. smg lists an engine with one rank without the suffix,
//     sglang-router as @0; smg adds dp_base_url, dp_rank and dp_size.
//   - sglang-router accepts DELETE of a DP-aware worker with 202 and then does nothing: its job looks for
//     workers whose URL begins with "http://host:port@R@". The ranks stay listed until the router restarts.
//     smg removes each rank.
//   - POST /generate passes through as it is; smg names the engine in x-smg-routed-worker-id.
//   - sglang-router looks for a tokenizer of the served model on the model hub when a worker registers, and
//     goes on without; the tests point it at an address where nothing listens.
//   - The port for the router's own metrics is 29000 on all interfaces unless told otherwise: two routers
//     on one machine need --prometheus-port.
package realrouter
