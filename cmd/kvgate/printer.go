package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// The forms of output.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputJSONL = "jsonl"
	outputCSV   = "csv"
)

// column heads a table column. Numbers align right.
type column struct {
	name  string
	right bool
}

func left(name string) column  { return column{name: name} }
func right(name string) column { return column{name: name, right: true} }

// writeTable writes an aligned table; without rows it writes one line that says there is nothing.
func writeTable(w io.Writer, nothing string, columns []column, rows [][]string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, nothing)
		return err
	}
	t := plainTable()
	head := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		head[i] = c.name
		configs[i] = table.ColumnConfig{Number: i + 1}
		if c.right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(configs)
	appendRows(t, rows)
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// writeDetails writes one thing as aligned names and values; empty values are left out.
func writeDetails(w io.Writer, details [][2]string) error {
	t := plainTable()
	for _, d := range details {
		if d[1] != "" {
			appendRows(t, [][]string{{d[0], d[1]}})
		}
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func plainTable() table.Writer {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	return t
}

func appendRows(t table.Writer, rows [][]string) {
	for _, cells := range rows {
		row := make(table.Row, len(cells))
		for i, cell := range cells {
			row[i] = clean(cell)
		}
		t.AppendRow(row)
	}
}

// writeJSON writes an answer with the API's own field names, zero values included.
func writeJSON(w io.Writer, answer proto.Message) error {
	raw, err := answerJSON(answer)
	if err != nil {
		return err
	}
	return writeIndented(w, raw)
}

// writeJSONWith writes an answer with one more member that holds further answers.
func writeJSONWith[M proto.Message](w io.Writer, answer proto.Message, member string, more []M) error {
	raw, err := answerJSON(answer)
	if err != nil {
		return err
	}
	list := make([]json.RawMessage, len(more))
	for i, m := range more {
		if list[i], err = answerJSON(m); err != nil {
			return err
		}
	}
	extra, err := json.Marshal(list)
	if err != nil {
		return err
	}
	raw = bytes.TrimSuffix(raw, []byte("}"))
	if !bytes.HasSuffix(raw, []byte("{")) {
		raw = append(raw, ',')
	}
	return writeIndented(w, fmt.Appendf(raw, "%q:%s}", member, extra))
}

func writeIndented(w io.Writer, raw []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// answerJSON returns the compact protobuf JSON of an answer. protojson varies its white space on
// purpose; compacting makes equal answers equal bytes.
func answerJSON(answer proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(answer)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Compact(&b, raw)
	return b.Bytes(), err
}
