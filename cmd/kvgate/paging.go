package main

import (
	"github.com/spf13/cobra"
)

// largestPage is how many rows one call asks for.
const largestPage = 1000

// limitFlag defines --limit; 0 means all.
func limitFlag(cmd *cobra.Command, p *int64, value int64) {
	countVar(cmd.Flags(), p, "limit", value, "show at most this many; 0 shows all")
}

// pages collects rows page by page until there are no more or limit is reached. fetch gets the size
// and the token of a page and returns its rows and the token of the next, "" at the end. next is not
// empty when rows were left out.
func pages[T any](limit int64, fetch func(size int32, token string) ([]T, string, error)) (rows []T, next string, err error) {
	next, err = eachPage(limit, fetch, func(page []T) error {
		rows = append(rows, page...)
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return rows, next, nil
}

// eachPage is pages for what need not be held all at once: take gets every page.
func eachPage[T any](limit int64, fetch func(size int32, token string) ([]T, string, error), take func([]T) error) (next string, err error) {
	taken := int64(0)
	for {
		size := int64(largestPage)
		if limit > 0 {
			size = min(size, limit-taken)
		}
		page, token, err := fetch(int32(size), next)
		if err == nil {
			err = take(page)
		}
		if err != nil {
			return "", err
		}
		taken, next = taken+int64(len(page)), token
		if next == "" || limit > 0 && taken >= limit {
			return next, nil
		}
	}
}
