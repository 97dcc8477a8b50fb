package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/ledger"
	"kvgate/rpc/rules"
)

// newValidator compiles the rules of every request ahead of the first call; a request type that is
// missing here would be refused at run time, so requestMessages walks the services.
func newValidator() (protovalidate.Validator, error) {
	v, err := protovalidate.New(
		protovalidate.WithMessageDescriptors(requestMessages()...),
		protovalidate.WithDisableLazy(),
		protovalidate.WithFailFast(),
	)
	if err != nil {
		return nil, fmt.Errorf("compile validation rules: %w", err)
	}
	return v, nil
}

func requestMessages() []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	for _, method := range apiMethods() {
		out = append(out, method.Input())
	}
	return out
}

// validation returns the interceptor that refuses requests that break a rule of the protos.
func validation(v protovalidate.Validator) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if m, ok := req.Any().(proto.Message); ok {
				if err := rules.Validate(v, m); err != nil {
					return nil, violationError(err)
				}
			}
			return next(ctx, req)
		}
	}
}

// violationError turns the first broken rule into a *ledger.FieldError, so that callers see one form
// wherever a value was refused. Anything but a broken rule is passed on.
func violationError(err error) error {
	failed := (*protovalidate.ValidationError)(nil)
	if !errors.As(err, &failed) || len(failed.Violations) == 0 {
		return err
	}
	v := failed.Violations[0]
	rule := v.Proto.GetRuleId()
	path := protovalidate.FieldPathString(v.Proto.GetField())
	if path == "" {
		// Rules over a whole message are named "<field at fault>.<what>" in the protos.
		path, _, _ = strings.Cut(rule, ".")
	}
	return &ruleError{
		FieldError: ledger.FieldError{Field: lowerCamel(path), Value: valueText(v.FieldValue), Allowed: v.Proto.GetMessage()},
		rule:       rule,
	}
}

// ruleError is a FieldError whose text fits the wording of the rules ("must be ...").
type ruleError struct {
	ledger.FieldError
	rule string
}

func (e *ruleError) Error() string {
	text := e.Allowed
	switch e.rule {
	case "string.pattern":
		text = "must be printable UTF-8 without control characters"
	case "string.min_bytes":
		text = "must not be empty"
	}
	if e.Value == "" {
		return e.Field + ": " + text
	}
	return fmt.Sprintf("%s is %s: %s", e.Field, e.Value, text)
}

// Unwrap gives the error table what it looks for.
func (e *ruleError) Unwrap() error { return &e.FieldError }

// maxValueText bounds how much of a refused value is repeated to the caller, in bytes.
const maxValueText = 80

func valueText(v protoreflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	switch x := v.Interface().(type) {
	case string:
		return quote(x)
	case protoreflect.Message:
		if d, ok := x.Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
		return string(x.Descriptor().Name())
	case protoreflect.List:
		return fmt.Sprintf("a list of %d", x.Len())
	default:
		return fmt.Sprint(x)
	}
}

func quote(s string) string {
	if len(s) > maxValueText {
		return fmt.Sprintf("%q... (%d bytes)", strings.ToValidUTF8(s[:maxValueText], ""), len(s))
	}
	return fmt.Sprintf("%q", s)
}

// lowerCamel turns a path of proto names such as "usage.prompt_tokens" into JSON names.
func lowerCamel(path string) string {
	var b strings.Builder
	up := false
	for _, r := range path {
		if r == '_' {
			up = true
			continue
		}
		if up && r >= 'a' && r <= 'z' {
			r -= 'a' - 'A'
		}
		up = false
		b.WriteRune(r)
	}
	return b.String()
}
