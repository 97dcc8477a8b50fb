// Command etcd is the peer that benchmarks compare three nodes of kvgate with: members of an etcd
// cluster, and a load on it. It is a module of its own, so that etcd is no dependency of kvgate.
//
//	etcd member NAME DIR CLIENT-ADDR PEER-ADDR NAME=URL,…
//	etcd load CALLERS LENGTH CLIENT-ADDR,…
//
// A member runs until it is killed. A load makes pairs for a while, a put and a delete of a key of its
// own each, at the leader, and prints as JSON how many there were, in which time, and quantiles of the
// time of a put; all times are in nanoseconds.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 6 && args[0] == "member":
		return member(args[1], args[2], args[3], args[4], args[5])
	case len(args) == 4 && args[0] == "load":
		callers, err := strconv.Atoi(args[1])
		length, lengthErr := time.ParseDuration(args[2])
		if err := errors.Join(err, lengthErr); err != nil {
			return err
		}
		return load(callers, length, strings.Split(args[3], ","))
	}
	return errors.New("usage: etcd member NAME DIR CLIENT-ADDR PEER-ADDR NAME=URL,… | etcd load CALLERS LENGTH CLIENT-ADDR,…")
}

func member(name, dir, client, peer, cluster string) error {
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.LogLevel = name, dir, cluster, "error"
	clients, peers := []url.URL{{Scheme: "http", Host: client}}, []url.URL{{Scheme: "http", Host: peer}}
	c.ListenClientUrls, c.AdvertiseClientUrls = clients, clients
	c.ListenPeerUrls, c.AdvertisePeerUrls = peers, peers
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// load prints what came of it.
func load(callers int, length time.Duration, addrs []string) error {
	client, err := connect(addrs)
	if err != nil {
		return err
	}
	defer client.Close()
	times, failures := make([][]time.Duration, callers), make([]error, callers)
	var group sync.WaitGroup
	began := time.Now()
	for i := range callers {
		group.Go(func() { times[i], failures[i] = pairs(client, i, began.Add(length)) })
	}
	group.Wait()
	took := time.Since(began)
	all := slices.Concat(times...)
	if err := errors.Join(failures...); err != nil || len(all) == 0 {
		return fmt.Errorf("%d pairs: %w", len(all), err)
	}
	slices.Sort(all)
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{
		"pairs": int64(len(all)), "took": int64(took), "p50": int64(all[len(all)/2]), "p99": int64(all[len(all)*99/100]),
	})
}

// connect returns a client of the leader alone.
func connect(addrs []string) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, addr := range addrs {
		status, err := client.Status(ctx, addr)
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		if status.Leader == status.Header.MemberId {
			client.SetEndpoints(addr)
			return client, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("none of %v leads", addrs), client.Close())
}

// pairs makes pairs until the end and returns how long each put took.
func pairs(client *clientv3.Client, caller int, end time.Time) (times []time.Duration, err error) {
	ctx := context.Background()
	value := strings.Repeat("v", 64)
	for n := 0; ; n++ {
		start := time.Now()
		if start.After(end) {
			return times, nil
		}
		key := fmt.Sprintf("rollout-%d-%08d:0", caller, n)
		if _, err := client.Put(ctx, key, value); err != nil {
			return times, err
		}
		times = append(times, time.Since(start))
		gone, err := client.Delete(ctx, key)
		if err != nil {
			return times, err
		}
		if gone.Deleted != 1 {
			return times, fmt.Errorf("key %s: %d deleted, want 1", key, gone.Deleted)
		}
	}
}
