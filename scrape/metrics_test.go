package scrape

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvgate/ledger"
)

const self = "http://10.0.0.1:30000"

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// check compares what the figures of a Sample are made of.
func check(t *testing.T, got, want Sample) {
	t.Helper()
	if got.Capacity != want.Capacity || got.Used != want.Used || got.Evictable != want.Evictable {
		t.Errorf("capacity %d, used %d, evictable %d; want %d, %d, %d",
			got.Capacity, got.Used, got.Evictable, want.Capacity, want.Used, want.Evictable)
	}
	if !near(got.Usage, want.Usage) || !near(got.Pressure, want.Pressure) {
		t.Errorf("usage %v, pressure %v; want %v, %v", got.Usage, got.Pressure, want.Usage, want.Pressure)
	}
	if got.DPRanks != want.DPRanks || got.Running != want.Running || got.Queued != want.Queued {
		t.Errorf("ranks %d, running %d, queued %d; want %d, %d, %d",
			got.DPRanks, got.Running, got.Queued, want.DPRanks, want.Running, want.Queued)
	}
	if got.Evicted != want.Evicted || got.Start != want.Start || got.Role != want.Role {
		t.Errorf("evicted %v, start %v, role %v; want %v, %v, %v",
			got.Evicted, got.Start, got.Role, want.Evicted, want.Start, want.Role)
	}
}

func TestFixtures(t *testing.T) {
	for _, c := range []struct {
		file, why string
		info      Info
		want      Sample
		err       error
	}{
		{
			file: "01_tp2_qwen3coder_session_radix_20260902.txt",
			why: `TP=2 shows one pool twice: capacity is 2340338, not 4680676. It is also 2231 available + 2338107
			evictable + 0 used. Nothing runs, so usage is 0 although 2338107/2340338 = 99.9 % is resident.`,
			want: Sample{Capacity: 2340338, Evictable: 2338107, DPRanks: 1, Evicted: 17902550, Role: ledger.RoleRegular},
		},
		{
			file: "03_docs_llama8b_unlabelled.txt",
			why:  "no capacity gauge and no available/evictable to make one from",
			err:  ErrNoCapacity,
			want: Sample{Pressure: 0.28, DPRanks: 1, Running: 162, Queued: 2826},
		},
		{
			file: "03_docs_llama8b_unlabelled.txt",
			why:  "with /server_info's capacity of 442353: used is 123859, 123859/442353 = 0.28000...; pressure is token_usage",
			info: Info{PerRank: 442353},
			want: Sample{Capacity: 442353, Used: 123859, Usage: 123859.0 / 442353, Pressure: 0.28, DPRanks: 1, Running: 162, Queued: 2826},
		},
		{
			file: "05_r1_pr7944_mixed_labels.txt",
			why:  "idle, no capacity; two ranks of 300000 tokens by /v1/loads make 600000",
			info: Info{Ranks: map[string]ledger.Tokens{"0": 300000, "1": 300000}},
			want: Sample{Capacity: 600000, DPRanks: 2, Role: ledger.RoleRegular},
		},
		{
			file: "05_r1_pr7944_mixed_labels.txt",
			why:  "idle, no capacity",
			err:  ErrNoCapacity,
			want: Sample{DPRanks: 1, Role: ledger.RoleRegular},
		},
		{
			file: "06_v0.5.1_qwen32b_issue13485.txt",
			why:  "token_usage reads 0.0 but one token is used: the quotient 1/500000 = 2e-6 counts",
			info: Info{PerRank: 500000},
			want: Sample{Capacity: 500000, Used: 1, Usage: 2e-6, Pressure: 2e-6, DPRanks: 1, Running: 1, Role: ledger.RoleRegular},
		},
		{
			file: "06_v0.5.1_qwen32b_issue13485.txt",
			why:  "no max_total_num_tokens at all",
			err:  ErrNoCapacity,
			want: Sample{DPRanks: 1, Running: 1, Role: ledger.RoleRegular},
		},
		{
			file: "07_router_engine_metrics_smg813.txt",
			why:  "a merged page without any family in use; begins with a sample that has no TYPE, values are integers",
			err:  ErrNoCapacity,
			want: Sample{DPRanks: 1},
		},
		{
			file: "11_relax_tp4_replicated_max_total.txt",
			why: `TP=4 repeats 262144 four times, not 1048576. 239901/262144 = 0.91515; token_usage, rounded by the
			engine to 0.915, makes the pressure.`,
			want: Sample{Capacity: 262144, Used: 239901, Usage: 239901.0 / 262144, Pressure: 0.915, DPRanks: 1, Running: 16},
		},
	} {
		t.Run(c.file, func(t *testing.T) {
			got, err := Read(fixture(t, c.file), self, c.info)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v (%s)", err, c.err, c.why)
			}
			check(t, got, c.want)
			if t.Failed() {
				t.Log(c.why)
			}
		})
	}
}

// Fixture 02 as pages: usage stays near 0 while the pool is full of evictable prefixes and evictions run.
// The thrash shows in evictable share and eviction rate alone.
func TestThrash(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(string(fixture(t, "02_kv_thrash_tp2_v0.5.15.post1_1hz.csv")))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	engine := &track{}
	var rates []float64
	var first, fifth Sample
	for i, row := range rows[1:] {
		page := fmt.Sprintf("sglang:max_total_num_tokens{tp_rank=\"0\"} 321614.0\nsglang:max_total_num_tokens{tp_rank=\"1\"} 321614.0\n"+
			"sglang:token_usage %s\nsglang:kv_available_tokens %s\nsglang:kv_evictable_tokens %s\nsglang:evicted_tokens_total{cache_type=\"x\"} %s\n",
			row[1], row[2], row[3], row[4])
		s, err := Read([]byte(page), self, Info{})
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		unix, _ := strconv.ParseInt(row[0], 10, 64)
		engine.take(s, nil, time.Unix(unix, 0))
		rates = append(rates, engine.rate)
		switch i {
		case 0:
			first = s
		case 4:
			fifth = s
		}
	}
	// Row 1: 317641 of 321614 = 98.8 % resident, usage 0.0.
	check(t, first, Sample{Capacity: 321614, Evictable: 317641, DPRanks: 1})
	if share := float64(first.Evictable) / float64(first.Capacity); math.Round(share*1000) != 988 {
		t.Errorf("evictable share %v, want 98.8 %%", share)
	}
	// Row 5: used is 0.03 × 321614 = 9648.42; usage 9648.42/321614 = 0.03.
	check(t, fifth, Sample{Capacity: 321614, Used: 9648, Evictable: 294605, Usage: 0.03, Pressure: 0.03, DPRanks: 1, Evicted: 46072})
	// Row 4 is one second after row 3 and 31410 - 0 more are evicted; row 5: 46072 - 31410 = 14662.
	// Row 12 comes two seconds after row 11: (47424 - 46072) / 2 = 676.
	for row, want := range map[int]float64{1: 0, 3: 0, 4: 31410, 5: 14662, 12: 676} {
		if rates[row-1] != want {
			t.Errorf("row %d: eviction rate %v tokens/s, want %v", row, rates[row-1], want)
		}
	}
	if engine.incarnation != "" {
		t.Errorf("incarnation %q although the counter only grew", engine.incarnation)
	}
}

// dp8 is DP attention over 8 ranks: tp_rank equals dp_rank.
func dp8() string {
	var b strings.Builder
	for r := range 8 {
		fmt.Fprintf(&b, "sglang:max_total_num_tokens{dp_rank=\"%d\",tp_rank=\"%d\"} 1000\n", r, r)
		fmt.Fprintf(&b, "sglang:num_used_tokens{dp_rank=\"%d\",tp_rank=\"%d\"} %d\n", r, r, 100*r)
		fmt.Fprintf(&b, "sglang:token_usage{dp_rank=\"%d\",tp_rank=\"%d\"} 0.%d\n", r, r, r)
		fmt.Fprintf(&b, "sglang:num_running_reqs{dp_rank=\"%d\",tp_rank=\"%d\"} 2\n", r, r)
	}
	return b.String()
}

const merged = `sglang_max_total_num_tokens{worker_addr="http://10.0.0.1:30000"} 1000
sglang_max_total_num_tokens{worker_addr="http://10.0.0.2:30000"} 5000
sglang_token_usage{worker_addr="http://10.0.0.1:30000"} 0.25
sglang_token_usage{worker_addr="http://10.0.0.2:30000"} 0.75
`

func TestOddities(t *testing.T) {
	for _, c := range []struct {
		name, why, page string
		info            Info
		want            Sample
		err             error
	}{
		{
			name: "NaN is skipped", why: "usage NaN is no measurement, so 500/1000 counts",
			page: "sglang:max_total_num_tokens 1000\nsglang:token_usage NaN\nsglang:num_used_tokens 500\nsglang:num_queue_reqs NaN\n",
			want: Sample{Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "NaN of one rank", why: "the max of NaN and 1000 over tp is 1000",
			page: "sglang:max_total_num_tokens{tp_rank=\"0\"} NaN\nsglang:max_total_num_tokens{tp_rank=\"1\"} 1000\n",
			want: Sample{Capacity: 1000, DPRanks: 1},
		},
		{
			name: "NaN capacity only", page: "sglang:max_total_num_tokens NaN\nsglang:token_usage 0.5\n",
			err: ErrNoCapacity, want: Sample{DPRanks: 1, Pressure: 0.5},
		},
		{
			name: "infinite capacity", why: "an infinite count would admit everything; it counts as absent",
			page: "sglang:max_total_num_tokens +Inf\n", err: ErrNoCapacity, want: Sample{DPRanks: 1},
		},
		{
			name: "infinite usage", why: "+Inf clamps to 1, used is 1 × 1000",
			page: "sglang:max_total_num_tokens 1000\nsglang:token_usage +Inf\n",
			want: Sample{Capacity: 1000, Used: 1000, Usage: 1, Pressure: 1, DPRanks: 1},
		},
		{
			name: "negative", page: "sglang:max_total_num_tokens 1000\nsglang:token_usage -0.5\nsglang:num_used_tokens -3\nsglang:num_running_reqs -1\n",
			want: Sample{Capacity: 1000, DPRanks: 1},
		},
		{
			name: "over full", why: "used clamps to the capacity, usage to 1",
			page: "sglang:max_total_num_tokens 1000\nsglang:token_usage 1.2\nsglang:num_used_tokens 1200\n",
			want: Sample{Capacity: 1000, Used: 1000, Usage: 1, Pressure: 1, DPRanks: 1},
		},
		{
			name: "enormous", why: "clamped to ledger.MaxTokens",
			page: "sglang:max_total_num_tokens 1e300\n", want: Sample{Capacity: ledger.MaxTokens, DPRanks: 1},
		},
		{
			name: "timestamps", page: "sglang:max_total_num_tokens 2.340338e+06 1784268356000\nsglang:token_usage 0.5 1784268356000\n",
			want: Sample{Capacity: 2340338, Used: 1170169, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "braces, quotes and newlines in labels",
			page: `sglang:max_total_num_tokens{model_name="a}b{c\"d\\e\nf # g",tp_rank="0"} 1000` + "\n",
			want: Sample{Capacity: 1000, DPRanks: 1},
		},
		{
			name: "CRLF, blanks and tabs", page: "  sglang:max_total_num_tokens\t1000\r\n\r\n sglang:token_usage { a = \"b\" } 0.5\r\n",
			want: Sample{Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "TYPE lines repeated, late or wrong", why: "comments are not read",
			page: "sglang:max_total_num_tokens 1000\n# TYPE sglang:max_total_num_tokens histogram\n# TYPE sglang:max_total_num_tokens gauge\nsglang:token_usage 0.5\n# EOF\n",
			want: Sample{Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "garbage in a family that is not used", page: "sglang:other{ 1 2 3 ===\npython_gc{x=} zzz\nsglang:max_total_num_tokens 1000\nsglang:e2e_bucket{le=\"x",
			want: Sample{Capacity: 1000, DPRanks: 1},
		},
		{name: "garbage in a family that is", page: "sglang:max_total_num_tokens 1000\nsglang:token_usage zero\n", err: ErrMalformed},
		{name: "cut within a line", page: "sglang:max_total_num_tokens 1000\nsglang:token_usage 0.5\nsglang:num_used_tokens 12", err: ErrMalformed},
		{name: "not metrics", page: "<html><body>hello</body></html>\n", err: ErrNoMetrics},
		{name: "another program's metrics", page: "process_start_time_seconds 1\ngo_goroutines 4\n", err: ErrNoMetrics},
		{name: "empty", page: "", err: ErrNoMetrics},
		{
			name: "DP 8", why: "8 pools of 1000; used 100 × (0+1+…+7) = 2800; 2800/8000 = 0.35; the worst rank has 0.7; 8 × 2 run",
			page: dp8(), want: Sample{Capacity: 8000, Used: 2800, Usage: 0.35, Pressure: 0.7, DPRanks: 8, Running: 16},
		},
		{
			name: "PP 2 × TP 2", why: "four repeats of one pool; the largest of 900 and 1000 counts",
			page: `sglang:max_total_num_tokens{pp_rank="0",tp_rank="0"} 1000
sglang:max_total_num_tokens{pp_rank="0",tp_rank="1"} 1000
sglang:max_total_num_tokens{pp_rank="1",tp_rank="0"} 900
sglang:max_total_num_tokens{pp_rank="1",tp_rank="1"} 900
sglang:token_usage{pp_rank="0",tp_rank="0"} 0.5
`,
			want: Sample{Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "DP 2 × TP 2, pid and ep", why: "max(10, 20) + max(30, 5) = 50 used of 2 × 100",
			page: `sglang:max_total_num_tokens{dp_rank="0",tp_rank="0",moe_ep_rank="0",pid="7"} 100
sglang:max_total_num_tokens{dp_rank="0",tp_rank="1",moe_ep_rank="1",pid="8"} 100
sglang:max_total_num_tokens{dp_rank="1",tp_rank="0",moe_ep_rank="0",pid="9"} 100
sglang:num_used_tokens{dp_rank="0",tp_rank="0",pid="7"} 10
sglang:num_used_tokens{dp_rank="0",tp_rank="1",pid="8"} 20
sglang:num_used_tokens{dp_rank="1",tp_rank="0",pid="9"} 30
sglang:num_used_tokens{dp_rank="1",tp_rank="1",pid="10"} 5
`,
			want: Sample{Capacity: 200, Used: 50, Usage: 0.25, Pressure: 0.3, DPRanks: 2},
		},
		{
			name: "capacity per rank, usage for all", why: "one usage without dp_rank speaks for both ranks: used 0.6 × 200",
			page: "sglang:max_total_num_tokens{dp_rank=\"0\"} 100\nsglang:max_total_num_tokens{dp_rank=\"1\"} 100\nsglang:token_usage 0.6\n",
			want: Sample{Capacity: 200, Used: 120, Usage: 0.6, Pressure: 0.6, DPRanks: 2},
		},
		{
			name: "capacity for all, usage per rank", why: "used adds up to 60 of 200; the worst rank presses",
			page: `sglang:max_total_num_tokens 200
sglang:num_used_tokens{dp_rank="0"} 10
sglang:num_used_tokens{dp_rank="1"} 50
sglang:token_usage{dp_rank="0"} 0.1
sglang:token_usage{dp_rank="1"} 0.5
`,
			want: Sample{Capacity: 200, Used: 60, Usage: 0.3, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "a total beside its ranks", why: "the series without dp_rank is the sum already",
			page: "sglang:max_total_num_tokens 200\nsglang:max_total_num_tokens{dp_rank=\"0\"} 100\nsglang:max_total_num_tokens{dp_rank=\"1\"} 100\n",
			want: Sample{Capacity: 200, DPRanks: 2},
		},
		{
			name: "a rank that tells only its usage", why: "rank 1 adds no capacity but its usage presses",
			page: "sglang:max_total_num_tokens{dp_rank=\"0\"} 100\nsglang:token_usage{dp_rank=\"0\"} 0.1\nsglang:token_usage{dp_rank=\"1\"} 0.9\n",
			want: Sample{Capacity: 100, Used: 10, Usage: 0.1, Pressure: 0.9, DPRanks: 2},
		},
		{
			name: "priorities", why: `5 = total with priority="", of which 2 and 3`,
			page: "sglang:max_total_num_tokens 1000\nsglang:num_running_reqs{priority=\"\"} 5\nsglang:num_running_reqs{priority=\"1\"} 2\nsglang:num_running_reqs{priority=\"10\"} 30\nsglang:num_queue_reqs{priority=\"\"} 1\nsglang:num_queue_reqs{priority=\"1\"} 7\n",
			want: Sample{Capacity: 1000, DPRanks: 1, Running: 5, Queued: 1},
		},
		{
			name: "starting up", why: "capacity without usage or used: counts, empty",
			page: "sglang:max_total_num_tokens{tp_rank=\"0\"} 1000\n", want: Sample{Capacity: 1000, DPRanks: 1},
		},
		{
			name: "capacity from parts", why: "300 + 200 + 500 = 1000; usage 500/1000",
			page: "sglang:kv_available_tokens 300\nsglang:kv_evictable_tokens 200\nsglang:kv_used_tokens 500\n",
			want: Sample{Capacity: 1000, Used: 500, Evictable: 200, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "parts without used", why: "used may be anything: no capacity can be made of them",
			page: "sglang:kv_available_tokens 300\nsglang:kv_evictable_tokens 200\n", err: ErrNoCapacity, want: Sample{DPRanks: 1},
		},
		{
			name: "used from parts", why: "1000 - 300 - 200 = 500",
			page: "sglang:max_total_num_tokens 1000\nsglang:kv_available_tokens 300\nsglang:kv_evictable_tokens 200\n",
			want: Sample{Capacity: 1000, Used: 500, Evictable: 200, Usage: 0.5, Pressure: 0.5, DPRanks: 1},
		},
		{
			name: "capacity of one rank by info, 4 ranks", why: "no dp_rank on the page: 4 × 250",
			page: "sglang:token_usage 0.5\n", info: Info{PerRank: 250, DPSize: 4},
			want: Sample{Capacity: 1000, Used: 500, Usage: 0.5, Pressure: 0.5, DPRanks: 4},
		},
		{
			name: "capacity by info, ranks on the page", why: "2 × 250; used 25 + 225 = 250",
			page: "sglang:token_usage{dp_rank=\"0\"} 0.1\nsglang:token_usage{dp_rank=\"1\"} 0.9\n", info: Info{PerRank: 250, DPSize: 2},
			want: Sample{Capacity: 500, Used: 250, Usage: 0.5, Pressure: 0.9, DPRanks: 2},
		},
		{
			name: "full_token_usage", page: "sglang:max_total_num_tokens 1000\nsglang:full_token_usage 0.4\n",
			want: Sample{Capacity: 1000, Used: 400, Usage: 0.4, Pressure: 0.4, DPRanks: 1},
		},
		{
			name: "hybrid model without token_usage", why: "used is told; the SWA pool presses with 0.8",
			page: "sglang:max_total_num_tokens 1000\nsglang:num_used_tokens 400\nsglang:full_token_usage 0.4\nsglang:swa_token_usage 0.8\nsglang:mamba_usage 0.1\n",
			want: Sample{Capacity: 1000, Used: 400, Usage: 0.4, Pressure: 0.8, DPRanks: 1},
		},
		{
			name: "usage without used", why: "the gauges moved at different times: 0.25 × 1000",
			page: "sglang:max_total_num_tokens 1000\nsglang:num_used_tokens 0\nsglang:token_usage 0.25\n",
			want: Sample{Capacity: 1000, Used: 250, Usage: 0.25, Pressure: 0.25, DPRanks: 1},
		},
		{
			name: "evictions", why: "cache types add, 5 + 7; tp ranks repeat, max(12, 6); dp ranks add, 12 + 4",
			page: `sglang:max_total_num_tokens 1000
sglang:evicted_tokens_total{dp_rank="0",tp_rank="0",cache_type="a"} 5
sglang:evicted_tokens_total{dp_rank="0",tp_rank="0",cache_type="b"} 7
sglang:evicted_tokens_total{dp_rank="0",tp_rank="1",cache_type="a"} 6
sglang:evicted_tokens_total{dp_rank="1",tp_rank="0",cache_type="a"} 4
`,
			want: Sample{Capacity: 1000, DPRanks: 1, Evicted: 16},
		},
		{
			name: "engine_type decode and start time", page: "process_start_time_seconds 1.7e9\nsglang:max_total_num_tokens{engine_type=\"decode\"} 1000\n",
			want: Sample{Capacity: 1000, DPRanks: 1, Start: 1.7e9, Role: ledger.RoleDecode},
		},
		{
			name: "merged page, this engine", why: "10.0.0.1 has 1000 tokens at 0.25; 10.0.0.2 stays out",
			page: merged, want: Sample{Capacity: 1000, Used: 250, Usage: 0.25, Pressure: 0.25, DPRanks: 1},
		},
		{name: "merged page, none is this engine", page: strings.ReplaceAll(merged, "10.0.0.1", "10.0.0.9"), err: ErrMergedPage},
		{
			name: "merged page of ranks", why: "@0 and @1 are dp ranks of one engine: 2 × 1000; the start time is the router's",
			page: `process_start_time_seconds 5
sglang_max_total_num_tokens{worker_addr="http://10.0.0.1:30000@0"} 1000
sglang_max_total_num_tokens{worker_addr="http://10.0.0.1:30000@1"} 1000
`,
			want: Sample{Capacity: 2000, DPRanks: 2},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read([]byte(c.page), self, c.info)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v (%s)", err, c.err, c.why)
			}
			if err == nil || errors.Is(err, ErrNoCapacity) {
				check(t, got, c.want)
			}
			if t.Failed() {
				t.Log(c.why)
			}
		})
	}
}

// An error names the page's own line although most lines are not parsed.
func TestErrorNamesLine(t *testing.T) {
	_, err := Read([]byte("# HELP x y\n# TYPE x gauge\nx 1\n\nsglang:token_usage zero\n"), self, Info{})
	if err == nil || !strings.Contains(err.Error(), "line 5") {
		t.Fatalf("error %v, want one that names line 5", err)
	}
}

func TestParseInfo(t *testing.T) {
	for _, c := range []struct {
		name, body string
		of         map[string]float64
		err        error
	}{
		{"server_info", `{"model_path":"m","dp_size":2,"max_total_num_tokens":1000,"internal_states":[{}]}`, map[string]float64{"": 2000, "0": 1000}, nil},
		{"loads", `{"dp_rank_count":2,"loads":[{"dp_rank":0,"max_total_num_tokens":10},{"dp_rank":1,"max_total_num_tokens":20}]}`, map[string]float64{"": 30, "1": 20, "7": 0}, nil},
		{"without", `{"version":"0.4"}`, nil, ErrMalformed},
		{"negative", `{"max_total_num_tokens":-1}`, nil, ErrMalformed},
		{"a list", `[]`, nil, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			info, err := ParseInfo([]byte(c.body))
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			for dp, want := range c.of {
				if got := info.of(dp); got != want {
					t.Errorf("capacity of %q is %v, want %v", dp, got, want)
				}
			}
		})
	}
}
