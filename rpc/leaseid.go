package rpc

import (
	"strconv"
	"strings"

	"kvgate/ledger"
)

const leaseIDForm = `"<epoch>:<ticket>", e.g. "3:req-17:0"`

// parseLeaseID splits "<epoch>:<ticket>" at the first colon: tickets may hold colons themselves.
// Only the form that ledger.LeaseID writes is taken, so that one lease has one id.
func parseLeaseID(field, id string) (epoch uint64, ticket string, err error) {
	number, ticket, ok := strings.Cut(id, ":")
	if !ok {
		return 0, "", invalid(field, quote(id), leaseIDForm)
	}
	epoch, err = strconv.ParseUint(number, 10, 64)
	if err != nil || ledger.LeaseID(epoch, ticket) != id {
		return 0, "", invalid(field, quote(id), leaseIDForm+": the epoch is a decimal number")
	}
	if ticket == "" || len(ticket) > maxIDBytes {
		return 0, "", invalid(field, quote(id), leaseIDForm+" with a ticket of 1 to 256 bytes")
	}
	return epoch, ticket, nil
}

const maxIDBytes = 256
