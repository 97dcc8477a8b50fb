// Package router is a simulated sgl-model-gateway: it lists workers in the shapes that its releases
// and relatives list them in, checks their health, and proxies generate calls to them, keeping a
// session on one worker. It knows workers by URL only and can front anything that speaks the
// engine's HTTP.
package router
