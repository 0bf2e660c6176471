//go:build linux

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	machine "github.com/sandboxallow/sandboxallow/test/need"
)

const (
	dbHost     = "db.example.com" // whose certificate the server has
	dbPort     = 5432
	dbUser     = "app"
	dbPassword = "not a secret"

	postgresPrograms = "/usr/lib/postgresql/15/bin" // of Debian, which has them in no PATH
	postgresUser     = "postgres"                   // the server refuses to be root
)

var (
	dbAddr        = netip.MustParseAddr("93.184.216.54")
	dbPrivateAddr = netip.MustParseAddr("10.20.0.5")

	gatewayPostgres = netip.AddrPortFrom(gatewayAddr, dbPort)
)

// postgres is a PostgreSQL of the internet, which takes TLS and, from whoever asks for nothing better, clear text:
// that nobody comes with it is the doing of the gateway.
type postgres struct {
	*process
	dir string // of its socket too, on which it trusts everybody
}

// startPostgres runs PostgreSQL on addresses of the internet for the time of a test.
func (l *lab) startPostgres(tb testing.TB, addrs ...netip.Addr) *postgres {
	tb.Helper()
	machine.All(tb, machine.File(filepath.Join(postgresPrograms, "postgres")))
	need(tb, "setpriv", "unshare")
	dir, err := os.MkdirTemp(l.dir, "pg")
	if err != nil {
		tb.Fatal(err)
	}
	account, err := user.Lookup(postgresUser)
	if err != nil {
		tb.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	own := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, name), uid, gid); err != nil {
			tb.Fatal(err)
		}
	}
	chain, key, err := l.ca.files(dbHost)
	if err != nil {
		tb.Fatal(err)
	}
	own("server.crt", chain)
	own("server.key", key)
	own("password", dbPassword)
	own("hba", "local all all trust\nhost all all all scram-sha-256\n")
	if err := os.Chown(dir, uid, gid); err != nil {
		tb.Fatal(err)
	}

	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(postgresPrograms, "initdb"), "--pgdata", data, "--username", dbUser,
		"--pwfile", filepath.Join(dir, "password"), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if out, err := initdb.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}

	// By a file, and not below: this can be altered while the server runs.
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := fmt.Fprintln(conf, "ssl = on"); err != nil {
		tb.Fatal(err)
	}
	if err := conf.Close(); err != nil {
		tb.Fatal(err)
	}

	// The server binds to what an interface has.
	var listen []string
	for _, a := range addrs {
		listen = append(listen, a.String())
		if err := l.internet.ns.ip("addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo"); err != nil {
			tb.Fatal(err)
		}
	}
	// unshare: its shared memory ends with it, however it ends.
	line := []string{"unshare", "--ipc", "setpriv", "--reuid", account.Uid, "--regid", account.Gid, "--clear-groups",
		filepath.Join(postgresPrograms, "postgres"), "-D", data}
	for _, setting := range []string{
		"listen_addresses=" + strings.Join(listen, ","),
		fmt.Sprint("port=", dbPort),
		"unix_socket_directories=" + dir,
		"hba_file=" + filepath.Join(dir, "hba"),
		"ssl_cert_file=" + filepath.Join(dir, "server.crt"),
		"ssl_key_file=" + filepath.Join(dir, "server.key"),
		"cluster_name=" + dbHost,
		"log_connections=on",
		"dynamic_shared_memory_type=mmap", // in its folder
		"shared_buffers=16MB",
		"fsync=off",
		"autovacuum=off",
	} {
		line = append(line, "-c", setting)
	}
	s := &postgres{process: spawn(tb, l.internet.ns, nil, line...), dir: dir}
	s.name = "postgres"
	tb.Cleanup(func() {
		// SIGTERM, which comes next, would wait for its clients.
		_ = s.cmd.Process.Signal(syscall.SIGINT)
		<-s.exited
	})
	must(tb, startTimeout, "PostgreSQL serves", func() bool {
		return !s.running() || len(s.log.with(0, "ready to accept connections")) > 0
	})
	if !s.running() {
		tb.Fatalf("postgres ended: %v", s.err)
	}
	return s
}

// admin runs a statement as whoever has the machine of the server, and returns the first value of the answer, "" if
// there is none.
func (s *postgres) admin(tb testing.TB, sql string) (value string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=%s dbname=postgres", s.dir, dbPort, dbUser))
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close(ctx)
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	if rows := results[len(results)-1].Rows; len(rows) > 0 {
		value = string(rows[0][0])
	}
	return value
}

// connections is how many clients have come so far.
func (s *postgres) connections(tb testing.TB) int {
	tb.Helper()
	const from = "connection received: host="
	s.admin(tb, "SELECT 1") // is logged behind whoever came before it
	return len(s.log.with(0, from)) - len(s.log.with(0, from+"[local]"))
}

// sleeps waits until a client has the server sleep.
func (s *postgres) sleeps(tb testing.TB) {
	tb.Helper()
	must(tb, 10*time.Second, "the server sleeps", func() bool {
		return s.admin(tb, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
	})
}

// files returns the certificate of a name and its key, PEM.
func (a *authority) files(name string) (chain, key string, err error) {
	c, err := a.certificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return "", "", err
	}
	chain = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
	return chain, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}
