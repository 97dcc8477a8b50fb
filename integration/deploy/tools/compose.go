package main

import (
	"context"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads a file with all of its profiles, as `docker compose` would.
func compose(file string) (*types.Project, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("kvgate"), cli.WithProfiles([]string{"*"}), cli.WithResolvedPaths(true))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}
