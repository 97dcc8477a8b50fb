package rpc

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// The status page is one document that polls the JSON API. It loads nothing from elsewhere, so that it
// works on a cluster without a way out.
var (
	//go:embed web/page.html
	pageTemplate string
	//go:embed web/page.css
	pageStyle string
	//go:embed web/page.js
	pageScript string

	page = strings.NewReplacer("/*STYLE*/", pageStyle, "/*SCRIPT*/", pageScript).Replace(pageTemplate)

	// pagePolicy lets the browser run exactly the script and style that were built in: whatever a
	// ticket or engine calls itself cannot become code.
	pagePolicy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
		"; script-src " + sourceHash(pageScript) + "; style-src " + sourceHash(pageStyle)
)

func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func statusPage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(page))
}
