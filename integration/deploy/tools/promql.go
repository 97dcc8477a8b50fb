package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// selector is one series selector of an expression.
type selector struct {
	Metric string `json:"metric"`
	// Labels are those that its matchers and the groupings around it name.
	Labels []string `json:"labels"`
	// Around are the functions and aggregations it stands in, from the outside in.
	Around []string `json:"around"`
}

// promql reads expressions and says which series they read.
func promql(r io.Reader) ([][]selector, error) {
	var expressions []string
	if err := json.NewDecoder(r).Decode(&expressions); err != nil {
		return nil, err
	}
	all := make([][]selector, len(expressions))
	for i, text := range expressions {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		all[i] = selectors(expr)
	}
	return all, nil
}

func selectors(expr parser.Expr) []selector {
	found := []selector{}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		vector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		s := selector{Metric: vector.Name, Labels: []string{}, Around: []string{}}
		for _, m := range vector.LabelMatchers {
			if m.Name != model.MetricNameLabel {
				s.Labels = append(s.Labels, m.Name)
			}
		}
		for _, outer := range path {
			s.within(outer)
		}
		found = append(found, s)
		return nil
	})
	return found
}

// within notes a node that the selector stands in.
func (s *selector) within(node parser.Node) {
	switch node := node.(type) {
	case *parser.AggregateExpr:
		s.Around = append(s.Around, node.Op.String())
		s.Labels = append(s.Labels, node.Grouping...)
	case *parser.Call:
		s.Around = append(s.Around, node.Func.Name)
	}
}
