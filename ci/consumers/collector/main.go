// The decoder of OpenTelemetry's collector: a request of OTLP profiles from stdin, as JSON to stdout.
package main

import (
	"io"
	"log"
	"os"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

func main() {
	bytes, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalProto(bytes); err != nil {
		log.Fatal(err)
	}
	text, err := request.MarshalJSON()
	if err != nil {
		log.Fatal(err)
	}
	os.Stdout.Write(text)
}
