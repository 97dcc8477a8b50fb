// Command kvgate is the whole coordinator in one binary: the server and every tool that talks to it.
//
// One file holds one subcommand. main only wires: it builds a [Main] and hands it the process's
// arguments and streams; end-to-end tests run the same Main. What several subcommands share lives in
//
//	app.go      running a command line: exit codes, the one error line, environment
//	client.go   flags of client commands, endpoints, calls
//	config.go   the node's configuration; load.go merges flags, environment and file
//	secure.go   the node's certificates and tokens, and what is unsafe without them
//	printer.go  tables and JSON; format.go turns values into words
//
// Nothing here decides anything about admission: commands translate between a shell and the API.
package main
