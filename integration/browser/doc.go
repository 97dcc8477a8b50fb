// Package browser opens what kvgate shows people in a headless Chromium: nothing may be logged to the console, the
// charts must be drawn, and nothing that an id says may run. It needs Debian's chromium package; .ci/run installs
// it. With KVGATE_SHOTS=DIR the tests leave screenshots there, for a person to look at.
package browser
