// Package report turns a journal into one HTML file that explains a time window: what went wrong and what was
// changed, budget, pressure, queue and decisions over time, how long tickets waited, the worst waits in words,
// and what each session did. The file loads nothing: style, script, chart library and data are inside, and a
// content security policy lets the browser run exactly what was built in, so that an id cannot become code.
//
// [Build] computes, [Page.Write] renders. Build reads the journal three times: to know its ends and the settings before it, to
// fold it into series and sums, and to follow the few tickets and sessions that are shown one by one. It holds what is open
// at a time, about 16 bytes of each ticket that waited, and a few words of each session.
//
// Charts are drawn by uPlot (uplot/, MIT): small enough to travel inside
// each report, and fast with many points. Everything that is not a chart is plain HTML, so that a report can be
// read, searched and printed without a script.
package report
