//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	machine "github.com/sandboxallow/sandboxallow/test/need"
)

// The ways of a client of PostgreSQL: what it asks of TLS.
var (
	sslDisable    = way{name: "disable", scheme: "postgres", layer: "postgres"}
	sslPrefer     = way{name: "prefer", scheme: "postgres", layer: "postgres"} // TLS, and clear text if that fails
	sslRequire    = way{name: "require", scheme: "postgres", layer: "postgres"}
	sslVerifyFull = way{name: "verify-full", scheme: "postgres", layer: "postgres"}
)

// whoIs has the page of the server for an answer, and how the question has come to it.
const whoIs = `SELECT 'this is ' || current_setting('cluster_name') || chr(10) || coalesce(version, 'in clear text')
	FROM pg_stat_ssl WHERE pid = pg_backend_pid()`

// databaseClient is a client that asks a database for its page.
type databaseClient struct {
	client
	ways    []way  // to an allowed database
	noTrust string // what it says when it does not trust a certificate
}

var databaseClients = []databaseClient{
	{
		client: client{
			name:     "psql",
			label:    "psql",
			version:  versionOf("psql", "--version"),
			programs: []string{"psql"},
			fetch: func(l *lab, w way, host string) (string, error) {
				return l.psql(conninfo(l, w, host), whoIs)
			},
			noName: "could not translate host name",
		},
		ways:    []way{sslPrefer, sslRequire, sslVerifyFull},
		noTrust: "certificate verify failed",
	},
	{
		client: client{
			name:     "psycopg2",
			label:    "Python, psycopg2",
			version:  versionOf(debianPython, "-c", "import psycopg2; print(psycopg2.__version__)"),
			programs: []string{debianPython},
			setup: func(tb testing.TB, _ *lab) {
				machine.All(tb, machine.File("/usr/lib/python3/dist-packages/psycopg2"))
			},
			fetch: command(func(l *lab, w way, host string) []string {
				return []string{"env", "PGPASSWORD=" + dbPassword, debianPython, testdata("query.py"), conninfo(l, w, host), whoIs}
			}),
			noName: "could not translate host name",
		},
		ways:    []way{sslPrefer, sslRequire, sslVerifyFull},
		noTrust: "certificate verify failed",
	},
	{
		client: client{
			name:     "jdbc",
			label:    "Java, JDBC",
			version:  versionOf("java", "-jar", jdbcDriver),
			programs: []string{"java", "javac"},
			setup: func(tb testing.TB, l *lab) {
				machine.All(tb, machine.File(jdbcDriver))
				build(tb, "javac", "-d", l.dir, testdata("Query.java"))
			},
			fetch: command(func(l *lab, w way, host string) []string {
				url := fmt.Sprintf("jdbc:postgresql://%s/postgres?user=%s&sslmode=%s&connectTimeout=20", host, dbUser, w.name)
				if w == sslVerifyFull {
					url += "&sslrootcert=" + l.ca.file
				}
				return []string{"env", "PGPASSWORD=" + dbPassword,
					"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jdbcDriver + ":" + l.dir, "Query", url, whoIs}
			}),
			noName: "java.net.UnknownHostException",
		},
		ways:    []way{sslPrefer, sslVerifyFull},
		noTrust: "PKIX path building failed",
	},
	{
		client: client{
			name:    "pgx",
			label:   "Go, pgx",
			version: versionOf("go", "list", "-m", "github.com/jackc/pgx/v5"),
			fetch: command(func(l *lab, w way, host string) []string {
				self, err := os.Executable()
				if err != nil {
					panic(err)
				}
				return []string{"env", roleVar + "=" + roleDatabaseClient, "PGPASSWORD=" + dbPassword, self, conninfo(l, w, host)}
			}),
			noName: "no such host",
		},
		ways:    []way{sslPrefer, sslRequire, sslVerifyFull},
		noTrust: "tls: failed to verify certificate",
	},
}

const (
	jdbcDriver   = "/usr/share/java/postgresql.jar"
	debianPython = "/usr/bin/python3" // which has Debian's modules; python3 may be another one
)

// conninfo is what a client by libpq, or pgx, is told of a database. Whose certificates it trusts it is told only where
// it is to verify them: libpq would do so in other modes too.
func conninfo(l *lab, w way, host string) string {
	s := fmt.Sprintf("host=%s user=%s dbname=postgres sslmode=%s connect_timeout=20", host, dbUser, w.name)
	if w == sslVerifyFull {
		s += " sslrootcert=" + l.ca.file
	}
	return s
}

// beside is the lab as if the sandbox were where the gateway is, beside which databases are reached.
func (l *lab) beside() *lab {
	b := *l
	b.sandbox = l.gateway
	return &b
}

// psql runs a statement with psql.
func (l *lab) psql(conninfo, sql string, options ...string) (string, error) {
	return l.run(psql(conninfo, append(options, "--command", sql)...)...)
}

// psql is a command line of psql, which prints values alone and reads no file of the user's.
func psql(conninfo string, options ...string) []string {
	line := []string{"env", "PGPASSWORD=" + dbPassword, "psql", "--no-psqlrc", "--tuples-only", "--no-align"}
	return append(append(line, "--dbname", conninfo), options...)
}

// databaseRole is this program as a client: it prints the page of a database, or why that failed, and returns its exit
// code.
func databaseRole(conninfo string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var page string
	c, err := pgx.Connect(ctx, conninfo)
	if err == nil {
		defer c.Close(ctx)
		err = c.QueryRow(ctx, whoIs).Scan(&page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(page)
	return 0
}
