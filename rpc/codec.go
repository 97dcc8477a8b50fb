package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// jsonCodec replaces Connect's own JSON codec, which drops fields it does not know: a misspelt
// "maxWiat" would quietly mean the pool's default. Answers carry zero values, so that a reader need
// not know the schema to tell 0 from "this server is too old to say". Of protojson's two ways
// to do that it takes EmitDefaultValues: EmitUnpopulated would also write null for messages and
// optional settings that are unset, and null for a duration reads as if it were a value.
type jsonCodec struct{ name string }

// jsonCodecs returns the codec under both names that requests use for JSON.
func jsonCodecs() []jsonCodec {
	return []jsonCodec{{name: "json"}, {name: "json; charset=utf-8"}}
}

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c jsonCodec) Marshal(message any) ([]byte, error) {
	return c.MarshalAppend(nil, message)
}

// MarshalAppend lets Connect encode into its pooled buffers.
func (c jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.MarshalAppend(dst, m)
}

// MarshalStable lets Connect put answers into URLs and caches: protojson varies its white space.
func (c jsonCodec) MarshalStable(message any) ([]byte, error) {
	raw, err := c.Marshal(message)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// IsBinary says that encoded messages are text.
func (c jsonCodec) IsBinary() bool { return false }

// Unmarshal implements connect.Codec. What is wrong with the data is noted in the message, see unreadable.
func (c jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", message)
	}
	if len(data) == 0 {
		noteUnreadable(m, errors.New("the body is empty, send a JSON object, at least {}"))
	} else if err := (protojson.UnmarshalOptions{}).Unmarshal(data, m); err != nil {
		noteUnreadable(m, jsonError(err, m))
	}
	return nil
}

// protojsonError matches protojson's messages, whose prefix it varies on purpose.
var protojsonError = regexp.MustCompile(`^proto:\s*(.*)$`)

// enumError matches protojson's message about a name that an enum does not have.
var enumError = regexp.MustCompile(`invalid value for enum field (\w+):`)

// enumHint says what an enum field takes. It looks no deeper than the request's own fields and those of its
// messages, which is as deep as enums of the API stand.
func enumHint(d protoreflect.MessageDescriptor, field string) string {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Enum() != nil && f.JSONName() == field {
			return "; allowed are " + enumNames(f.Enum())
		}
		if f.Message() == nil || f.Message() == d {
			continue
		}
		for j := range f.Message().Fields().Len() {
			if g := f.Message().Fields().Get(j); g.Enum() != nil && g.JSONName() == field {
				return "; allowed are " + enumNames(g.Enum())
			}
		}
	}
	return ""
}

// enumNames lists the values of an enum but for the one that stands for its default.
func enumNames(d protoreflect.EnumDescriptor) string {
	var names []string
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 {
			names = append(names, string(v.Name()))
		}
	}
	return strings.Join(names, ", ")
}

// jsonError puts a parse error into words for the caller: which message, where, and for an unknown
// field what the message does have.
func jsonError(err error, m proto.Message) error {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	if match := protojsonError.FindStringSubmatch(text); match != nil {
		text = match[1]
	}
	d := m.ProtoReflect().Descriptor()
	if match := enumError.FindStringSubmatch(text); match != nil {
		text += enumHint(d, match[1])
	}
	if !strings.Contains(text, "unknown field") {
		return fmt.Errorf("%s: %s", d.Name(), text)
	}
	names := make([]string, d.Fields().Len())
	for i := range names {
		names[i] = d.Fields().Get(i).JSONName()
	}
	return fmt.Errorf("%s: %s; it has %s", d.Name(), text, strings.Join(names, ", "))
}
