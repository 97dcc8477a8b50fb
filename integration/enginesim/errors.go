package enginesim

import "errors"

var (
	// ErrConfig is a Config field with a value that is not allowed.
	ErrConfig = errors.New("enginesim: bad configuration")
	// ErrBadRequest is a request the engine refuses with status 400.
	ErrBadRequest = errors.New("enginesim: bad request")
	// ErrSessionExists is an open of a session id that is open already.
	ErrSessionExists = errors.New("enginesim: session id already exists")
	// ErrUnknownSession is a turn of a streaming session that is not open.
	ErrUnknownSession = errors.New("enginesim: session does not exist")
	// ErrStopped ends requests in flight when the engine closes or restarts.
	ErrStopped = errors.New("enginesim: engine stopped")
	// ErrFault is a fault that the engine does not know or cannot inject.
	ErrFault = errors.New("enginesim: bad fault")
	// ErrNotStarted is an operation that needs a listening engine.
	ErrNotStarted = errors.New("enginesim: engine is not listening")
)
