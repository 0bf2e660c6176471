package tunnel

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if s := os.Getenv(peersEnv); s != "" {
		if err := playPeers(s); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

// playPeers connects twice to the address at the end of the script and plays
// the client on the first connection and the upstream on the second.
func playPeers(script string) error {
	var kind, addr string
	var n int
	if _, err := fmt.Sscan(script, &kind, &n, &addr); err != nil {
		return err
	}
	client, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	upstream, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if kind == "bulk" {
		go func() {
			buf := make([]byte, 256<<10)
			var total int
			for {
				m, err := upstream.Read(buf)
				total += m
				if err != nil {
					break
				}
			}
			upstream.Close()
			if total != n {
				done <- fmt.Errorf("got %d bytes, want %d", total, n)
			}
			close(done)
		}()
		buf := make([]byte, 256<<10)
		for left := n; left > 0; {
			m, err := client.Write(buf[:min(left, len(buf))])
			if err != nil {
				return err
			}
			left -= m
		}
		client.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, client)
		return <-done
	}
	buf := make([]byte, 1<<10)
	go func() {
		buf := make([]byte, 1<<10)
		for {
			if _, err := io.ReadFull(upstream, buf); err != nil {
				break
			}
			upstream.Write(buf)
		}
		upstream.Close()
	}()
	for range n {
		if _, err := client.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(client, buf); err != nil {
			return err
		}
	}
	return client.Close()
}
