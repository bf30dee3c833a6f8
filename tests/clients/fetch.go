// Asks for one URL by Go's net/http and prints the body; exits with 1 where that fails or is refused.
// usage: fetch default|direct URL, with the authority that it trusts in SSL_CERT_FILE
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if os.Args[1] == "direct" {
		transport.Proxy = nil
	}
	client := http.Client{Transport: transport, Timeout: 30 * time.Second}
	response, err := client.Get(os.Args[2])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	body, _ := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode, string(body))
	if response.StatusCode != 200 {
		os.Exit(1)
	}
}
