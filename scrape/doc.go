// Package scrape finds the inference engines of a pool and reads how full their KV caches are.
//
// Four layers, each usable without the next:
//
//   - discovery.go asks the router who the engines are, or takes the operator's list;
//   - metrics.go and aggregate.go turn one engine's /metrics page into one [Sample];
//   - poller.go runs rounds for one pool and proposes each as a [ledger.Round];
//   - manager.go keeps one poller per pool that names a router or engines.
//
// What engines and routers really answer differs by release; each oddity that shaped the code is named
// where the code deals with it, with its upstream issue number.
//
// Only the leader polls: [Manager.Run] is started on election and ended by its context. Nothing here
// decides about admission, and nothing here writes but through [Proposer].
//
// # How a page is read
//
// Of some thousand lines a page has, about twenty matter. Lines of other families, comments, HELP and
// TYPE are blanked before the text parser sees them. So a family that this package does not use can
// neither cost time nor void an engine, a TYPE line that is missing or repeated does no harm, and the
// line number in an error is still the page's own. A line of a family in use that does not parse is an
// error of the whole page: half a page is worse than the previous one.
package scrape
