// A receiver of deliveries with Go's standard library: checks X-MQ-Signature.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

func isValid(secret []byte, header http.Header, body []byte) bool {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(header.Get("X-MQ-Timestamp") + "."))
	mac.Write(body)
	expected := "sha256=" + hex.EncodeToString(mac.Sum(nil))
	return hmac.Equal([]byte(header.Get("X-MQ-Signature")), []byte(expected))
}

func main() {
	secret := []byte(os.Getenv("SECRET"))
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
		if err != nil {
			http.Error(w, "unreadable body", http.StatusInternalServerError)
			return
		}
		if !isValid(secret, r.Header, body) {
			http.Error(w, "bad signature", http.StatusBadRequest)
			return
		}
		fmt.Println(r.Header.Get("X-MQ-Topic"), r.Header.Get("X-MQ-Published-Subject"), r.Header.Get("X-MQ-Id"), string(body))
	})
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
