package deploy

import (
	"bytes"
	"encoding/json"
)

// A row is a section of the dashboard.
type row struct {
	title  string
	panels []panel
}

// A panel shows one thing; help says what a value means and what to do about it.
type panel struct {
	title, help string
	// unit is one of Grafana's: short, s, percentunit, bytes, ops.
	unit string
	// stat shows the newest value instead of a curve; name shows the legend in its place.
	stat, name bool
	// most is the top of the axis, 0 for none.
	most    float64
	queries []query
}

// A query is an expression and the legend of its series.
type query struct{ expr, legend string }

const (
	columns    = 24
	curveWidth = 8
	statWidth  = 6
	curveTall  = 8
	statTall   = 4
)

// object is a JSON object; encoding/json writes its keys in order.
type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// render lays the rows out and returns the dashboard as Grafana imports it.
func render(rows []row) ([]byte, error) {
	var panels []object
	y := 0
	for _, r := range rows {
		panels = append(panels, object{
			"id": len(panels) + 1, "type": "row", "title": r.title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": columns, "h": 1},
		})
		y++
		x, tall := 0, 0
		for _, p := range r.panels {
			w, h := curveWidth, curveTall
			if p.stat {
				w, h = statWidth, statTall
			}
			if x+w > columns || tall != 0 && h != tall {
				x, y = 0, y+tall
			}
			panels = append(panels, p.json(len(panels)+1, object{"x": x, "y": y, "w": w, "h": h}))
			x, tall = x+w, h
		}
		y += tall
	}
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(false)
	to.SetIndent("", " ")
	err := to.Encode(object{
		"uid": "kvgate", "title": "kvgate", "tags": []string{"kvgate"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "10s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "browser",
		"description": "Admission, engines, sessions, calls and the cluster of kvgate. One Prometheus job for each cluster.",
		"templating":  object{"list": variables()}, "annotations": object{"list": []object{}}, "panels": panels,
	})
	return out.Bytes(), err
}

func variables() []object {
	choice := func(name, label, of string, several bool) object {
		v := object{
			"name": name, "label": label, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
			"query": object{"query": of, "refId": name}, "definition": of, "multi": several, "includeAll": several,
		}
		if several {
			v["current"] = object{"text": []string{"All"}, "value": []string{"$__all"}}
		}
		return v
	}
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
		choice("job", "Cluster", "label_values(agentic_kv_raft_term, job)", false),
		choice("pool", "Pool", `label_values(agentic_kv_ceiling_tokens{job="$job"}, pool)`, true),
	}
}

func (p panel) json(id int, at object) object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend, "datasource": source, "editorMode": "code", "range": !p.stat, "instant": p.stat,
		})
	}
	field := object{"unit": p.unit, "min": 0}
	if p.most > 0 {
		field["max"] = p.most
	}
	out := object{
		"id": id, "title": p.title, "description": p.help, "gridPos": at, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": field, "overrides": []object{}},
	}
	if p.stat {
		text := "value"
		if p.name {
			text = "name"
		} else if len(p.queries) > 1 || p.queries[0].legend != "" {
			text = "value_and_name"
		}
		out["type"] = "stat"
		out["options"] = object{"textMode": text, "colorMode": "none", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
		return out
	}
	field["custom"] = object{"lineWidth": 1, "fillOpacity": 5, "showPoints": "never"}
	out["type"] = "timeseries"
	out["options"] = object{
		"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}
	return out
}
