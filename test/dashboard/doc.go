// Package dashboard tests what an operator looks at, with the built binaries on loopback addresses: the
// dashboard of caddy in Chromium, and the dashboard for Grafana and the alerts of builds/grafana in Prometheus.
//
// Of the page: that names that clients choose stay text, that it follows what happens, that its buttons work by
// mouse and keyboard, and that it can be read on a phone and in the dark. Of the other two: that each query has an
// answer when Prometheus scrapes both binaries, and that alerts fire when they should.
//
// The tests need make, and Debian's packages chromium and prometheus. What is missing fails the run when CI is set,
// and skips the tests otherwise. E2E_BIN names a folder with coredns and caddy to test; without it they are built
// first. SCREENSHOTS names a folder that the screenshots are kept in.
package dashboard
