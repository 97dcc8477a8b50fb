"""Messages of the kvgate.v1 API, generated from the protos by `make gen`. Do not edit."""
