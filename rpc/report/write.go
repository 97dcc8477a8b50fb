package report

import (
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"html/template"
	"io"
	"time"

	"kvgate/rpc/words"
)

var (
	//go:embed page.html
	pageTemplate string
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
	//go:embed uplot/uPlot.iife.min.js
	chartScript string
	//go:embed uplot/uPlot.min.css
	chartStyle string
	//go:embed uplot/LICENSE
	chartLicence string
)

// parts are what the template puts in besides the data. They were built in, so they are not escaped.
type parts struct {
	Style, ChartStyle   template.CSS
	Script, ChartScript template.JS
	Licence             string
	Policy              string
}

var builtIn = parts{
	Style: template.CSS(pageStyle), ChartStyle: template.CSS(chartStyle), // #nosec G203 -- our own files
	Script: template.JS(pageScript), ChartScript: template.JS(chartScript), // #nosec G203 -- our own files
	Licence: chartLicence,
	Policy: "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; script-src " + sourceHash(pageScript) + " " +
		sourceHash(chartScript) + "; style-src " + sourceHash(pageStyle) + " " + sourceHash(chartStyle),
}

func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Write renders the report as one HTML file.
func (p *Page) Write(w io.Writer) error {
	clock := func(layout string) func(time.Time) string {
		return func(t time.Time) string {
			if t.IsZero() {
				return "unknown"
			}
			return t.In(p.Zone).Format(layout)
		}
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"num": func(n int64) string { return words.Number(n) }, "dur": words.Duration, "span": func(a, b time.Time) string { return words.Duration(b.Sub(a)) },
		"when": clock("2006-01-02 15:04:05.000"), "minute": clock("2006-01-02 15:04:05 MST"), "iso": clock(time.RFC3339Nano),
		"less": func(a, b int) int { return a - b },
	}).Parse(pageTemplate)
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		*Page
		Parts parts
	}{p, builtIn})
}
