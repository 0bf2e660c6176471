package caddymodule

import (
	"testing"
)

// The same decisions, with the same outcome for the client and in the log, whichever way a connection comes in. Where a
// test is about the way itself it is not in here.
func TestByEntrance(t *testing.T) {
	wayIn = byEntrance
	defer func() { wayIn = byLayer4 }()
	for _, tc := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Allowed", TestAllowed},
		{"Denied", TestDenied},
		{"RawBytes", TestRawBytes},
		{"SilentClient", TestSilentClient},
		{"Segments", TestSegments},
		{"LargeHello", TestLargeHello},
		{"Limit", TestLimit},
		{"Revoked", TestRevoked},
		{"RevokedPrivate", TestRevokedPrivate},
		{"RevokedByNextApp", TestRevokedByNextApp},
		{"ClosedWithLastApp", TestClosedWithLastApp},
		{"Settles", TestSettles},
		{"Panic", TestPanic},
		{"LoggedName", TestLoggedName},
		{"UpstreamPort", TestUpstreamPort},
		{"ListenerPolicy", TestListenerPolicy},
		{"MetricsLint", TestMetricsLint},
		{"RepeatedDenials", TestRepeatedDenials},

		{"Broker", TestBroker},
		{"BrokerRemovesCredentials", TestBrokerRemovesCredentials},
		{"BrokerConnectionField", TestBrokerConnectionField},
		{"BrokerOneName", TestBrokerOneName},
		{"BrokerNoOtherWay", TestBrokerNoOtherWay},
		{"BrokerByStream", TestBrokerByStream},
		{"BrokerDenies", TestBrokerDenies},
		{"BrokerCutsStreams", TestBrokerCutsStreams},
		{"BrokerMissingSecret", TestBrokerMissingSecret},
		{"BrokerOtherUpstream", TestBrokerOtherUpstream},
		{"TransportWithoutBroker", TestTransportWithoutBroker},
		{"BrokerExcept", TestBrokerExcept},
		{"BrokerCertificate", TestBrokerCertificate},
		{"BrokerEarlyHints", TestBrokerEarlyHints},
		{"BrokerExpectRefused", TestBrokerExpectRefused},
		{"BrokerLimit", TestBrokerLimit},
		{"BrokerOtherUpgrade", TestBrokerOtherUpgrade},
		{"BrokerRecords", TestBrokerRecords},
		{"BrokerReload", TestBrokerReload},
		{"BrokerStreams", TestBrokerStreams},
		{"BrokerTellsNoSecret", TestBrokerTellsNoSecret},
		{"BrokerWebSocket", TestBrokerWebSocket},
		{"BrokerWebSocketProtocols", TestBrokerWebSocketProtocols},
		{"Issuer", TestIssuer},
		{"BrokerSecretInValue", TestBrokerSecretInValue},
		{"BrokerTellsNoSecretBehindHead", TestBrokerTellsNoSecretBehindHead},
		{"BrokerTellsNoSecretOfRefused", TestBrokerTellsNoSecretOfRefused},
	} {
		t.Run(tc.name, tc.test)
	}
}
