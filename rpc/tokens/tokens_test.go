package tokens

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvgate/rpc/reload"
)

const good = `# who may call
s3cret-admin  admin

s3cret-all    client
s3cret-pools	client a,b
  s3cret-eyes observer
`

func TestFind(t *testing.T) {
	list, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]Grant{
		"s3cret-admin": {Role: Admin}, "s3cret-all": {Role: Client}, "s3cret-eyes": {Role: Observer},
		"s3cret-pools": {Role: Client, Pools: []string{"a", "b"}},
	} {
		if got, ok := list.Find(token); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %t, want %+v", token, got, ok, want)
		}
	}
	for _, token := range []string{"", "s3cret", "s3cret-admin ", "S3cret-admin", "#", "admin"} {
		if got, ok := list.Find(token); ok || got.Role != "" {
			t.Errorf("%q is known: %+v", token, got)
		}
	}
}

func TestInPool(t *testing.T) {
	for _, test := range []struct {
		grant Grant
		pool  string
		want  bool
	}{
		{Grant{Role: Client}, "a", true}, {Grant{Role: Client, Pools: []string{"a", "b"}}, "b", true},
		{Grant{Role: Client, Pools: []string{"a"}}, "ab", false}, {Grant{Role: Client, Pools: []string{"a"}}, "", false},
	} {
		if got := test.grant.InPool(test.pool); got != test.want {
			t.Errorf("%+v in %q: %t", test.grant, test.pool, got)
		}
	}
}

func TestBadFilesNameTheLineAndNeverTheToken(t *testing.T) {
	for content, want := range map[string]string{
		"":                                 "no token in it",
		"# s3cret admin":                   "no token in it",
		"s3cret":                           "line 1: 1 words",
		"\n\ns3cret admin a b":             "line 3: 4 words",
		"s3cret admin\nadmin s3cret":       "line 2: the second word is no role",
		"s3cret Admin":                     "line 1: the second word is no role",
		"s3cret observer a":                "line 1: role observer takes no pools",
		"s3cret admin a":                   "line 1: role admin takes no pools",
		"s3cret client a,,b":               "line 1: a pool without a name",
		"s3cret client ,":                  "line 1: a pool without a name",
		"s3cret admin\n\ns3cret client ab": "line 3: the token of line 1 again",
	} {
		_, err := Parse([]byte(content))
		if !errors.Is(err, ErrBadLine) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	write := func(content string) {
		now = now.Add(lookEvery)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, now, now)); err != nil {
			t.Fatal(err)
		}
	}
	write("one admin")
	var log bytes.Buffer
	f, err := open(path, reload.Options{Every: lookEvery, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(token string, want bool) {
		t.Helper()
		if _, got := f.Find(token); got != want {
			t.Errorf("%s is known: %t", token, got)
		}
	}
	expect("one", true)
	write("two admin")
	expect("one", false)
	expect("two", true)
	write("three s3cret")
	expect("two", true)
	expect("three", false)
	if got := log.String(); !strings.Contains(got, "line 1") || strings.Contains(got, "s3cret") || strings.Contains(got, "three") {
		t.Errorf("logged %s", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("a client ,\nb")
	f.Fuzz(func(t *testing.T, content string) {
		list, err := Parse([]byte(content))
		if (list == nil) == (err == nil) {
			t.Fatalf("list %v, error %v", list, err)
		}
		if err == nil && len(list.rows) == 0 {
			t.Fatal("an empty list was accepted")
		}
	})
}
