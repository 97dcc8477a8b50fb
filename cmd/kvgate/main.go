package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(newMain().Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
